"""Every family is read bit by bit, or refused for the right reason (families.py, giants.py)."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES, fp8_config
from giants import GIANTS
from tiny import Tiny

ROOT = Path(__file__).resolve().parents[2]


def values_in(folder, out, segments=None):
    """What zoo_values says, with the values of each weight."""
    out.mkdir()
    arguments = [ROOT / "build" / "zoo_values", folder, out] + ([segments] if segments else [])
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for weight in found["weights"]:
        weight["values"] = np.fromfile(weight["file"], np.float32)
    return found


def inspect(folder, *arguments, threads="1"):
    command = [ROOT / "build" / "deepinfer", "inspect", folder, *arguments]
    environment = dict(os.environ, DEEPINFER_THREADS=threads)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def bits(values):
    """f32 bits with one zero: a sum that starts from +0 has no -0."""
    return (np.asarray(values, np.float32) + np.float32(0)).view(np.uint32)


def check(tiny, found):
    assert {w["name"] for w in found["weights"]} == set(tiny.expected)
    for weight in found["weights"]:
        expected = tiny.expected[weight["name"]]
        assert weight["format"] == expected.format, weight["name"]
        assert weight["shape"] == list(expected.values.shape), weight["name"]
        assert weight["gate_up"] == expected.gate_up, weight["name"]
        assert expected.cannot_run in weight["cannot_run"] and bool(expected.cannot_run) == bool(weight["cannot_run"])
        if weight["cannot_run"] and weight["format"] != "nvfp4":
            continue
        assert np.array_equal(bits(weight["values"]), bits(expected.values).ravel()), weight["name"]
    assert set(found["problems"]) == set(tiny.problems)
    for tensor, words in tiny.problems.items():
        assert words in found["problems"][tensor]


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, tmp_path):
    tiny = FAMILIES[name]()
    tiny.write(tmp_path / "model")
    check(tiny, values_in(tmp_path / "model", tmp_path / "out", tiny.segments))


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_and_scales_in_different_files(name, tmp_path):
    tiny = FAMILIES[name]()
    tiny.write(tmp_path / "model", num_shards=3)
    check(tiny, values_in(tmp_path / "model", tmp_path / "out", tiny.segments))


@pytest.mark.parametrize("name", GIANTS)
def test_giant(name, tmp_path):
    """The headers of a big release are mapped without a problem, and the summary fits a screen."""
    giant = GIANTS[name]()
    giant.write(tmp_path / "model")
    found = json.loads(inspect(tmp_path / "model", "--json").stdout)
    assert found["problems"] == [] and found["cannot_run"] == []
    assert sum(row["tensors"] for row in found["dtypes"]) == giant.num_tensors()
    formats = {row["format"]: row["tensors"] for row in found["formats"]}
    assert formats == giant.formats()
    assert [row["layer"] for row in found["by_layer"] if row["layer"] is not None][-1] >= found["layers"] - 1
    done = inspect(tmp_path / "model")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) < 24 and max(map(len, lines)) <= 80, done.stdout
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "model").iterdir()) < 100e6


def test_a_summary_with_every_part_fits_a_screen(tmp_path):
    """Ties, a scan, many formats, layers that cannot run and many problems, all at once."""
    everything = Tiny(FAMILIES["compressed_tensors_nvfp4"]().config)
    everything.config.update(model_type="x" * 100, num_hidden_layers=400, tie_word_embeddings=True)
    for i in range(40):
        everything.nvfp4(f"model.layers.{2 * i}.mlp.proj_{'y' * 60}{i}", 4, 32, ".weight_packed",
                         ".weight_global_scale", divides=True)
        everything.bf16(f"model.layers.{2 * i}.b{i}", 8, 512)
        everything.plain(f"model.layers.{i}.{'z' * 200}_{i}", "U8", 4)
    everything.write(tmp_path / "model")
    done = inspect(tmp_path / "model", "--scan")
    rows = sum(max(1, -(-len(line) // 80)) for line in done.stdout.splitlines())
    assert done.returncode == 1 and rows <= 24, done.stdout
    assert "cannot run yet: no kernel takes NVFP4" in done.stdout
    assert "more (--tensors lists all)" in done.stdout


def test_scan_counts_what_is_there(tmp_path):
    t = Tiny({"quantization_config": fp8_config((32, 32))})
    codes = np.full((64, 64), 0x38, np.uint8)
    codes[3, :5] = (0x7F, 0xFF, 0x7E, 0xFE, 0x00)
    t.add("layers.0.a.weight", "F8_E4M3", codes)
    t.add("layers.0.a.scale", "F8_E8M0", np.array([[0, 255], [127, 255]], np.uint8))
    for name in "b", "c":
        t.add(f"layers.0.{name}.weight", "F8_E4M3", np.full((64, 64), 0x30, np.uint8))
        scales = np.array([[1, -1], [np.nan, np.inf]] if name == "b" else [[1, 2], [3, 4]], np.float32)
        t.add(f"layers.0.{name}.weight_scale_inv", "F32", scales)
    t.plain("layers.0.norm.weight", "BF16", 8)
    t.write(tmp_path / "model")
    for threads in "1", "3":
        found = json.loads(inspect(tmp_path / "model", "--scan", "--json", "--tensors", threads=threads).stdout)
        none = {"nan": 0, "infinite": 0, "negative_scales": 0, "e8m0_0": 0, "e8m0_255": 0}
        by_name = {row["name"]: row["scan"] for row in found["tensors"]}
        assert by_name["layers.0.a.weight"] == dict(none, nan=2)
        assert by_name["layers.0.a.scale"] == dict(none, nan=2, e8m0_0=1, e8m0_255=2)
        assert by_name["layers.0.b.weight_scale_inv"] == dict(none, nan=1, infinite=1, negative_scales=1)
        assert by_name["layers.0.norm.weight"] == none
        assert found["scan"] == dict(nan=5, infinite=1, negative_scales=1, e8m0_0=1, e8m0_255=2)
        assert found["ties"] == [["layers.0.b.weight", "layers.0.c.weight"]]
        kinds = {row["pattern"]: row["scan"] for row in found["kinds"]}
        assert kinds["layers.*.a"] == dict(none, nan=4, e8m0_0=1, e8m0_255=2)


def test_what_cannot_run_is_said_by_layer(tmp_path):
    FAMILIES["modelopt_nvfp4"]().write(tmp_path / "model")
    done = inspect(tmp_path / "model", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [row["layers"] for row in found["cannot_run"]] == [[0]]
    assert {row["pattern"]: row["block"] for row in found["kinds"] if "block" in row} == {
        "model.layers.*.mlp.down_proj": "1 x 16"}
    assert "layer 0" in inspect(tmp_path / "model", "--layers").stdout


def test_a_segmentation_is_given_on_the_command_line(tmp_path):
    FAMILIES["mimo_v2"]().write(tmp_path / "model")
    assert inspect(tmp_path / "model").returncode == 1
    assert inspect(tmp_path / "model", "--segment", "qkv_proj$=200").returncode == 0
    assert inspect(tmp_path / "model", "--segment", "qkv_proj$=300").returncode == 1
    for wrong in "qkv_proj", "qkv_proj=0", "qkv_proj=x", "(=8":
        assert inspect(tmp_path / "model", "--segment", wrong).returncode in (2, 3)


def case(config):
    return Tiny({"quantization_config": config})


def test_case_020_the_scale_alone_is_deleted(tmp_path):
    t = case(fp8_config())
    t.fp8("layers.0.attn.wo_b", 64, 64, (128, 128), "F8_E8M0", ".scale")
    del t.tensors["layers.0.attn.wo_b.scale"]
    t.write(tmp_path / "model")
    done = inspect(tmp_path / "model", "--tensors")
    assert done.returncode == 1
    for name in ".weight: data type", ".weight_scale_inv", ".weight_scale", ".scale":
        assert "layers.0.attn.wo_b" + name in done.stdout


def test_case_021_both_halves_are_listed(tmp_path):
    t = case(fp8_config())
    for name in "a", "b", "c", "lost":
        t.fp8(name, 32, 32, (128, 128))
    del t.tensors["c.weight_scale_inv"], t.tensors["lost.weight"]
    t.write(tmp_path / "model")
    done = inspect(tmp_path / "model", "--json")
    assert done.returncode == 1
    assert [p["tensor"] for p in json.loads(done.stdout)["problems"]] == ["c.weight", "lost.weight_scale_inv"]


def test_case_024_bf16_is_listed_as_what_it_is(tmp_path):
    t = case(fp8_config())
    t.bf16("model.layers.1.ple.key_proj", 32, 32)
    t.write(tmp_path / "model")
    found = json.loads(inspect(tmp_path / "model", "--json").stdout)
    assert [row["format"] for row in found["kinds"]] == ["bf16"] and found["problems"] == []
    check(t, values_in(tmp_path / "model", tmp_path / "out"))


@pytest.mark.parametrize(
    "content, words",
    [
        (b"GGUF\3\0\0\0" + bytes(64), "GGUF"),  # case 8
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"PK\3\4" + bytes(64), "zip archive"),
        (b"<!DOCTYPE html><html></html>", "web page"),
    ],
)
def test_case_008_files_of_another_kind_are_refused_by_name(tmp_path, content, words):
    (tmp_path / "model.safetensors").write_bytes(content)
    done = inspect(tmp_path)
    assert done.returncode == 3 and words in done.stderr and len(done.stderr.splitlines()) == 1
    (tmp_path / "model.safetensors").rename(tmp_path / "model.gguf")
    done = inspect(tmp_path)
    assert done.returncode == 3 and "GGUF" in done.stderr
