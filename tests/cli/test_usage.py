"""Exit codes and one-line messages: usage errors, bad files, missing features."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest


def fails(done, code, *words):
    assert done.returncode == code, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    assert "terminate" not in done.stderr


def one_line(done):
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("deepinfer: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["runn"],
        ["run"],
        ["run", "x", "--prompt", "hi", "--max-tokens", "0"],
        ["run", "x", "--prompt", "hi", "--max-tokens", "many"],
        ["run", "x", "--prompt", "hi", "--activations", "int8"],
        ["run", "x", "--prompt", "hi", "--chat", "--raw"],
        ["run", "x", "--prompt", "hi", "--chat-template", "nonsense"],
        ["run", "x", "--prompt", "hi", "--chat-template", "chatml", "--raw"],
        ["run", "x", "--prompt", "hi", "--temperature", "-1"],
        ["run", "x", "--prompt", "hi", "--top-p", "0"],
        ["run", "x", "--prompt", "hi", "--threads", "-2"],
        ["perplexity", "x"],
        ["quantize", "a", "b"],
        ["quantize", "a", "b", "--format", "fp7"],
        ["bench", "gemm", "--shape", "12xfoo"],
        ["bench", "gemm", "--format", "q4"],
    ],
)
def test_usage_errors_exit_2(deepinfer, arguments):
    done = deepinfer(*arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.strip()


@pytest.mark.parametrize("command", [[], ["info"], ["run"], ["quantize"], ["inspect"], ["perplexity"], ["verify"]])
def test_help_exits_0(deepinfer, command):
    done = deepinfer(*command, "--help")
    assert done.returncode == 0
    assert "--help" in done.stdout and not done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 200


def test_version(deepinfer):
    done = deepinfer("--version")
    assert done.returncode == 0 and done.stdout.strip() == json.loads(deepinfer("info", "--json").stdout)["version"]


def test_info(deepinfer):
    info = json.loads(deepinfer("info", "--json").stdout)
    assert info["schema"] == 1 and info["contract"] == 1 and info["threads"] >= 1
    assert {i["name"] for i in info["isas"]} >= {"ref"}
    assert info["isa"] in deepinfer("info").stdout


def test_environment(deepinfer):
    fails(deepinfer("info", env={"DEEPINFER_ISA": "sse9"}), 2, "DEEPINFER_ISA", "sse9", "avx2")
    fails(deepinfer("info", env={"DEEPINFER_THREADS": "lots"}), 2, "DEEPINFER_THREADS", "lots")
    fails(deepinfer("info", env={"DEEPINFER_THREADS": "0"}), 2, "DEEPINFER_THREADS")
    for isa in json.loads(deepinfer("info", "--json").stdout)["isas"]:
        done = deepinfer("info", "--json", env={"DEEPINFER_ISA": isa["name"]})
        if isa["usable"]:
            assert json.loads(done.stdout)["isa"] == isa["name"]
        else:
            fails(done, 4, isa["name"])
    assert json.loads(deepinfer("info", "--json", env={"DEEPINFER_THREADS": "3"}).stdout)["threads"] == 3


@pytest.mark.parametrize("command", [["run", "--prompt", "hi"], ["perplexity", "--file", "/etc/hostname"], ["inspect"]])
def test_missing_folder(deepinfer, command):
    done = deepinfer(command[0], "/nowhere/at all", *command[1:])
    fails(done, 3, "/nowhere/at all")
    one_line(done)


@pytest.fixture
def copy(models, tmp_path):
    """A copy of the smallest checkpoint that a test may damage."""
    folder = tmp_path / "model"
    shutil.copytree(models["smollm2-mxfp4"], folder)
    return folder


def damage_truncate(folder):
    path = folder / "model.safetensors"
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size - 4096)
    return 3, "model.safetensors"


def damage_header(folder):
    with open(folder / "model.safetensors", "r+b") as f:
        f.write(struct.pack("<Q", 1 << 40))
    return 3, "model.safetensors"


def damage_config(folder):
    (folder / "config.json").write_text("{")
    return 3, "config.json"


def damage_config_missing(folder):
    (folder / "config.json").unlink()
    return 3, "config.json"


def damage_type(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "mamba"
    (folder / "config.json").write_text(json.dumps(config))
    return 4, "mamba"


def damage_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] = 640
    (folder / "config.json").write_text(json.dumps(config))
    return 3, "expected"


def damage_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    return 4, "Unigram"


def damage_tokenizer_missing(folder):
    (folder / "tokenizer.json").unlink()
    return 3, "tokenizer.json"


def damage_template(folder):
    for path in (folder / "chat_template.jinja", folder / "tokenizer_config.json"):
        path.unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return 4, "template"


@pytest.mark.parametrize("damage", [f for n, f in sorted(globals().items()) if n.startswith("damage_")])
def test_damaged_model(deepinfer, copy, damage):
    code, word = damage(copy)
    done = deepinfer("run", str(copy), "--prompt", "hi", "--max-tokens", "2")
    fails(done, code, word)
    one_line(done)
    assert done.stdout == ""


def test_unknown_template_runs_raw_or_as_another(deepinfer, copy):
    arguments = ["run", str(copy), "--prompt", "hi", "--max-tokens", "2", "--json"]
    own = json.loads(deepinfer(*arguments).stdout)
    damage_template(copy)
    fails(deepinfer(*arguments), 4, "--raw", "--chat-template")
    assert len(json.loads(deepinfer(*arguments, "--raw").stdout)["prompt_ids"]) == 1
    assert json.loads(deepinfer(*arguments, "--chat-template", "smollm2").stdout)["ids"] == own["ids"]


def test_nan_is_named_and_exits_3(deepinfer, copy):
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    begin = 8 + size + header["model.layers.7.self_attn.o_proj.weight"]["data_offsets"][0]
    data[begin : begin + 64] = b"\x7f" * 64
    path.write_bytes(data)
    done = deepinfer("run", str(copy), "--prompt", "hi", "--max-tokens", "2")
    fails(done, 3, "model.layers.7.self_attn", "NaN")
    one_line(done)


def test_perplexity(deepinfer, models, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    arguments = ["--file", str(text), "--context", "64", "--tokens", "100", "--json"]
    out = json.loads(deepinfer("perplexity", models["smollm2-bf16"], *arguments).stdout)
    assert out["predictions"] == 100 and 1 < out["perplexity"] < 20
    (tmp_path / "empty").write_text("")
    fails(deepinfer("perplexity", models["smollm2-bf16"], "--file", str(tmp_path / "empty")), 3, "empty")
    fails(deepinfer("perplexity", models["smollm2-bf16"], "--file", str(tmp_path)), 3, str(tmp_path))


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["runn"], "did you mean run?"),
        (["bench", "gem"], "did you mean gemm?"),
        (["run", "x", "--promt", "hi"], "did you mean --prompt?"),
        (["quantize", "a", "b", "--form", "mxfp4"], "did you mean --format?"),
        (["run", "x", "--prompt", "hi", "--raw", "--system", "s"], "--system"),
        (["run", "x", "--prompt", ""], None),
    ],
)
def test_typos_are_named(deepinfer, models, arguments, word):
    if word is None:
        arguments, word = ["run", models["smollm2-mxfp4"], "--prompt", ""], "--prompt"
    done = deepinfer(*arguments)
    fails(done, 2, word)
    one_line(done)


def test_text_that_is_not_utf8_is_refused(deepinfer, models, tmp_path):
    file = tmp_path / "latin1.txt"
    file.write_bytes("na\u00efve text".encode("latin-1"))
    done = deepinfer("perplexity", models["smollm2-mxfp4"], "--file", str(file))
    fails(done, 3, "latin1.txt", "byte 2", "0xef")


def test_logits_never_overwrite(deepinfer, models, tmp_path):
    file = tmp_path / "precious"
    file.write_text("precious")
    done = deepinfer("run", models["smollm2-mxfp4"], "--prompt", "hi", "--logits", str(file))
    fails(done, 2, "already exists")
    assert file.read_text() == "precious"


def test_standard_error_that_cannot_be_written_changes_no_exit_code(program, models):
    for arguments, code in (["inspect", "/nope"], 3), (["run", "x", "--prompt", "hi", "--chat", "--raw"], 2):
        with open("/dev/full", "w") as full:
            assert subprocess.run([program, *arguments], stderr=full).returncode == code


def test_more_threads_than_the_system_gives(program, models):
    command = f"ulimit -v 700000; {program} run {models['smollm2-mxfp4']} --prompt hi --threads 1000"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    fails(done, 5, "thread", "of 1000")
