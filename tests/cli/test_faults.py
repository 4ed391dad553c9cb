"""Faults of the world: files cut short, full disks, missing rights, no memory, hostile indexes.

Each has a message that names the thing, an exit code, and leaves no half of anything behind."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

NOBODY = 65534
MB = 1 << 20
INDEX = "model.safetensors.index.json"


def fails(done, code, *words):
    assert done.returncode == code, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("deepinfer: ")


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_source(folder, rows=256):
    """A bf16 checkpoint of zeros, small or not, that quantize takes."""
    folder.mkdir()
    size = rows * 256 * 2
    header = {f"model.layers.{i}.mlp.up_proj.weight": entry("BF16", [rows, 256], i * size, (i + 1) * size) for i in range(4)}
    (folder / "model.safetensors").write_bytes(safetensors(header, bytes(4 * size)))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def limited(which, limit):
    return lambda: resource.setrlimit(which, (limit, limit))


def as_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def model(models, tmp_path):
    """A copy that may be damaged. The weights are a real copy too: they are truncated in place."""
    folder = tmp_path / "model"
    shutil.copytree(models["smollm2-mxfp4"], folder)
    return folder


# ---- files that change while they are in use


def start(program, *arguments):
    pipe = subprocess.PIPE
    return subprocess.Popen([program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_weights_cut_short_while_in_use(program, model, tmp_path):
    """perplexity reads its text when the model is open: a FIFO holds it there."""
    fifo = tmp_path / "text"
    os.mkfifo(fifo)
    child = start(program, "perplexity", str(model), "--file", str(fifo))
    with open(fifo, "w") as text:  # waits for the reader
        os.truncate(model / "model.safetensors", 4096)
        text.write("Some words to predict. " * 20)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (3, ""), err
    assert len(err.splitlines()) == 1, err
    assert err.startswith(f"deepinfer: {model / 'model.safetensors'}: cut short while in use"), err
    byte = int(err.split(": byte ")[1].split()[0])
    assert 4096 <= byte < (model / "model.safetensors").stat().st_size + 2**30


def test_weights_cut_short_before_the_prompt(program, model):
    child = start(program, "run", str(model), "--prompt", "-")
    maps = Path(f"/proc/{child.pid}/maps")
    while "model.safetensors" not in maps.read_text():
        assert child.poll() is None
        time.sleep(0.01)
    os.truncate(model / "model.safetensors", 0)
    _, err = child.communicate("hi", timeout=120)
    assert child.returncode == 3 and "model.safetensors: cut short while in use" in err, err


def test_a_file_that_cannot_be_read_on(deepinfer, model):
    """Reading /proc/self/mem at 0 is an input/output error, as of a broken disk."""
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        kept = (model / name).read_bytes()
        (model / name).unlink()
        (model / name).symlink_to("/proc/self/mem")
        fails(deepinfer("run", str(model), "--prompt", "hi"), 3, name, "Input/output error")
        (model / name).unlink()
        (model / name).write_bytes(kept)


# ---- no room, no rights, no memory


def test_no_memory_for_the_mapping(deepinfer, tmp_path):
    file = tmp_path / "big.safetensors"
    size = 1 << 36
    file.write_bytes(safetensors({"a": entry("U8", [size], 0, size)}))
    os.truncate(file, file.stat().st_size + size)  # sparse
    done = deepinfer("inspect", str(file), preexec_fn=limited(resource.RLIMIT_AS, 1 << 30))
    fails(done, 5, "big.safetensors", "cannot map", "Cannot allocate memory")


def test_no_memory_for_the_header(deepinfer, tmp_path):
    entries = ",".join(f'"{i:09d}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{i + 1}]}}' for i in range(600_000))
    (tmp_path / "m.safetensors").write_bytes(safetensors(b"{" + entries.encode() + b"}", bytes(600_000)))
    done = deepinfer("inspect", str(tmp_path / "m.safetensors"), preexec_fn=limited(resource.RLIMIT_AS, 100 * MB))
    fails(done, 5, "memory")


@pytest.fixture
def public(models):
    """A folder that everybody can reach, which those of pytest are not, with a model."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        shutil.copytree(models["smollm2-mxfp4"], Path(name) / "model")
        yield Path(name)


def test_no_right_to_read(deepinfer, public):
    model = public / "model"
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        os.chmod(model / name, 0)
        done = deepinfer("run", str(model), "--prompt", "hi", preexec_fn=as_nobody)
        fails(done, 3, name, "Permission denied")
        os.chmod(model / name, 0o644)


def test_no_right_to_write_is_found_before_the_source_is_read(deepinfer, public):
    os.chmod(public, 0o555)
    out = public / "out"
    done = deepinfer("quantize", "/nowhere", str(out), "--format", "mxfp4", preexec_fn=as_nobody)
    fails(done, 1, str(out), "Permission denied")


def test_limit_on_file_size(deepinfer, tmp_path):
    source = write_source(tmp_path / "in")
    arguments = ["quantize", str(source), str(tmp_path / "out"), "--format", "mxfp8"]
    done = deepinfer(*arguments, preexec_fn=limited(resource.RLIMIT_FSIZE, 65536))
    fails(done, 1, "model.safetensors", "File too large")
    assert os.listdir(tmp_path) == ["in"]


def test_logits_on_a_full_disk(deepinfer, models, tmp_path):
    arguments = ["run", models["smollm2-mxfp4"], "--prompt", "hi", "--max-tokens", "2", "--logits", str(tmp_path / "l")]
    done = deepinfer(*arguments, preexec_fn=limited(resource.RLIMIT_FSIZE, 65536))
    assert done.returncode == 1 and "l: File too large" in done.stderr, done.stderr


def test_standard_output_on_a_full_disk(program, tmp_path):
    write_source(tmp_path / "in")
    with open("/dev/full", "w") as full:
        command = [program, "inspect", str(tmp_path / "in"), "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    fails(done, 1, "standard output could not be written")


# ---- output folders


def bad_out(name, tmp_path):
    out = tmp_path / name
    if name == "file":
        out.write_text("x")
    elif name == "full":
        out.mkdir()
        (out / "x").write_text("x")
    elif name == "dangling":
        out.symlink_to(tmp_path / "gone")
    elif name == "no/parent":
        pass
    return out


@pytest.mark.parametrize(
    "name, code, words",
    [
        ("file", 2, "not a folder"),
        ("full", 2, "not empty"),
        ("dangling", 2, "link that leads nowhere"),
        ("no/parent", 1, "No such file or directory"),
    ],
)
def test_a_bad_out_is_found_before_the_source_is_read(deepinfer, tmp_path, name, code, words):
    out = bad_out(name, tmp_path)
    fails(deepinfer("quantize", "/nowhere", str(out), "--format", "mxfp4"), code, words)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount: mount points were NOT tested")
def test_a_mount_point_is_no_out(deepinfer, tmp_path):
    out = tmp_path / "disk"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(out)]).returncode != 0:
        pytest.skip("no right to mount: mount points were NOT tested")
    try:
        fails(deepinfer("quantize", "/nowhere", str(out), "--format", "mxfp4"), 2, "is a mount point")
        assert os.listdir(tmp_path) == ["disk"]
    finally:
        subprocess.run(["umount", str(out)], check=True)


def test_a_link_to_an_empty_folder_is_filled(deepinfer, tmp_path):
    source = write_source(tmp_path / "in")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = deepinfer("quantize", str(source), str(tmp_path / "link"), "--format", "mxfp8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "real" / "model.safetensors").exists()
    assert sorted(os.listdir(tmp_path)) == ["in", "link", "real"]


def test_a_killed_run_can_be_started_again(program, deepinfer, tmp_path):
    source = write_source(tmp_path / "in", rows=1 << 16)
    out, partial = tmp_path / "out", tmp_path / "out.partial-deepinfer"
    arguments = ["quantize", str(source), str(out), "--format", "mxfp4"]
    child = start(program, *arguments)
    while not list(partial.glob("*")):
        assert child.poll() is None, child.communicate()
    child.send_signal(signal.SIGSTOP)
    fails(deepinfer(*arguments), 2, "another run is writing it now")
    child.kill()
    child.communicate()
    assert partial.exists() and not out.exists()
    (partial / "more").mkdir()
    done = deepinfer(*arguments)
    assert done.returncode == 0 and "removed what an interrupted run had left" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["in", "out"] and not (out / "more").exists()
    again = deepinfer("quantize", str(source), str(tmp_path / "other"), "--format", "mxfp4")
    assert again.returncode == 0 and again.stderr == ""
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "other" / "model.safetensors").read_bytes()


# ---- hostile files


def inspect_index(deepinfer, folder, text, **keywords):
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    return deepinfer("inspect", str(folder), **keywords)


@pytest.mark.parametrize("name", ["..", "../x.safetensors", "/etc/passwd", "a\\b", "x\0y", "", ".", "a/b"])
def test_names_in_an_index_stay_in_the_folder(deepinfer, tmp_path, name):
    text = json.dumps({"weight_map": {"t": name}})
    fails(inspect_index(deepinfer, tmp_path, text), 3, INDEX, 'tensor "t": plain file name expected')


def test_link_loops_and_folders_are_no_shards(deepinfer, tmp_path):
    text = json.dumps({"weight_map": {"t": "a.safetensors"}})
    (tmp_path / "a.safetensors").symlink_to("a.safetensors")
    fails(inspect_index(deepinfer, tmp_path, text), 3, "a.safetensors", "Too many levels of symbolic links")
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "a.safetensors").mkdir()
    fails(inspect_index(deepinfer, tmp_path, text), 3, "a.safetensors", "regular file expected, folder found")
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).symlink_to(INDEX)
    fails(deepinfer("inspect", str(tmp_path)), 3, INDEX, "Too many levels of symbolic links")


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"weight_map":{"a":"x","a":"y"}}', 'tensor "a" appears twice'),
        ('{"metadata":' + "[" * 1_000_000, "at most 32 nested values expected"),
        (b'{"weight_map":{"\xff":"x"}}', "valid UTF-8 expected"),
        ('{"weight_map":{"\x1b[2J":"x"}}', "escaped control character expected"),
    ],
)
def test_broken_indexes(deepinfer, tmp_path, text, words):
    fails(inspect_index(deepinfer, tmp_path, text), 3, INDEX, words)


@pytest.mark.parametrize(
    "content, words",
    [
        (struct.pack("<Q", 1 << 63) + b"{}", "header of at most 100000000 bytes expected"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "header of at most 100000000 bytes expected"),
        (struct.pack("<Q", 100_000_000) + b"{}", "99999998 bytes missing: incomplete download?"),
        (safetensors({"a": entry("U8", [1 << 63], 0, 1 << 63)}), "a larger number found"),
        (safetensors({"a": entry("F32", [1 << 40, 1 << 40], 0, 4)}), "the product overflows"),
        (safetensors({"a": entry("F8_E4M3", [128, 128], 0, 128)}, bytes(128)), "16384 bytes expected, 128 given"),
        (safetensors(b'{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}', b"x"), "appears twice"),
        (safetensors(b'{"a":' + b"[" * 1_000_000), "'{' expected"),
        (safetensors(b'{"\xc3(":{}}'), "valid UTF-8 expected"),
    ],
)
def test_hostile_headers(deepinfer, tmp_path, content, words):
    (tmp_path / "m.safetensors").write_bytes(content)
    fails(deepinfer("inspect", str(tmp_path / "m.safetensors")), 3, "m.safetensors", words)


def test_a_header_of_100_mb(deepinfer, tmp_path):
    """The limit of the format is read within the bounds that docs/robustness.md states."""
    text = b"{}" + b" " * (100_000_000 - 2)
    (tmp_path / "m.safetensors").write_bytes(safetensors(text))
    assert deepinfer("inspect", str(tmp_path / "m.safetensors")).returncode == 0
    (tmp_path / "m.safetensors").write_bytes(safetensors(text + b" "))
    fails(deepinfer("inspect", str(tmp_path / "m.safetensors")), 3, "100000001 found")


@pytest.mark.parametrize(
    "text, words",
    [
        ("[" * 1_000_000, "at most 64 arrays and objects inside each other"),
        ('{"hidden_size":1,"hidden_size":2}', 'each member once, found "hidden_size" twice'),
        ('{"a":"\udcff"}', "expected JSON"),
        ('{"model_type":"\\u001b[2J"}', '"\\u001b[2J"'),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_hostile_json(deepinfer, model, name, text, words):
    (model / name).write_bytes(text.encode(errors="surrogateescape"))
    code = 3
    if name == "config.json" and "model_type" in text:
        code = 4
    elif "model_type" in text:
        words = "model"
    fails(deepinfer("run", str(model), "--prompt", "hi"), code, name, words)


def bounded(memory, seconds):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    return limit


def test_an_index_of_a_million_entries(deepinfer, tmp_path):
    """1,000,000 tensors in 1,000,000 files that do not exist: refused in bounded memory and time."""
    entries = ",".join(f'"t{i:07d}":"f{i:07d}.safetensors"' for i in range(1_000_000))
    text = '{"weight_map":{' + entries + "}}"
    done = inspect_index(deepinfer, tmp_path, text, preexec_fn=bounded(12 * len(text), 60))
    fails(done, 3, "f0000000.safetensors: missing", "1000000 of 1000000 files missing")


def test_a_pattern_that_takes_exponential_time(deepinfer, tmp_path):
    name = "a" * 40 + "b"
    header = {f"{name}.weight": entry("F8_E4M3", [1, 32], 0, 32), f"{name}.weight_scale": entry("F32", [1, 1], 32, 36)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, bytes(36)))
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [1, 32]}
    groups = {"g": {"targets": ["re:(a+)+$"], "weights": weights}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    done = deepinfer("inspect", str(tmp_path), preexec_fn=bounded(1 << 30, 20))
    fails(done, 3, "config.json", "the regular expression gave up")


@pytest.mark.parametrize("seed", ["-1", "1.5", "18446744073709551616", "99999999999999999999999", "0x10", ""])
def test_seeds_that_are_not_seeds(deepinfer, seed):
    done = deepinfer("run", "x", "--prompt", "hi", "--temperature", "1", "--seed", seed)
    assert done.returncode == 2 and "--seed" in done.stderr


@pytest.mark.parametrize("option", ["--top-k", "--top-p", "--seed"])
@pytest.mark.parametrize("more", [[], ["--temperature", "0"]])
def test_options_without_effect(deepinfer, option, more):
    done = deepinfer("run", "x", "--prompt", "hi", option, "1", *more)
    assert done.returncode == 2 and option in done.stderr and "--temperature" in done.stderr
