"""deepinfer verify: exit codes, the table, --json, what is named, and Ctrl-C."""

import json
import os
import pty
import signal
import struct
import subprocess

import pytest

ONE, SCALE_ONE = 0x38, 127  # 1.0 in e4m3fn and e8m0


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def mxfp8(n, k, scale_at=None, scale=SCALE_ONE, code_at=None, code=ONE):
    """[n, k] of ones, with one scale and one code changed."""
    codes, scales = bytearray([ONE]) * (n * k), bytearray([SCALE_ONE]) * (n * (k // 32))
    if scale_at:
        scales[scale_at[0] * (k // 32) + scale_at[1]] = scale
    if code_at:
        codes[code_at[0] * k + code_at[1]] = code
    return {"w.weight": ("F8_E4M3", [n, k], bytes(codes)), "w.weight_scale": ("U8", [n, k // 32], bytes(scales))}


def verify_json(deepinfer, *arguments, code=0):
    done = deepinfer("verify", *map(str, arguments), "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_good_checkpoint(deepinfer, models):
    done = deepinfer("verify", models["smollm2-mxfp4"], "--budget", "500ms")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["format", "bf16", "fp8-32x32", "mxfp4", "other"]
    assert "32x32 blocks with unequal scales" in lines[3]
    assert lines[-1].startswith("ok: ") and "% of the rows compared" in lines[-1]
    assert "ref" in done.stdout and "seed 1" in done.stdout
    assert "\x1b" not in done.stdout and "\r" not in done.stdout


def test_json(deepinfer, models):
    report = verify_json(deepinfer, models["smollm2-fp8-32x32"], "--budget", "500ms", "--threads", "2", "--seed", "9")
    assert report["schema"] == 1 and report["contract"] == 1 and report["ok"] is True
    assert report["machine"]["cpu"] and report["verdict"].startswith("ok")
    assert not any(finding["error"] for finding in report["findings"]) and report["problems"] == []
    c = report["comparison"]
    assert c["seed"] == 9 and c["budget_seconds"] == 0.5 and c["differences"] == 0
    assert c["threads"] == [1, 2, 3] and c["isas"][-1] == "ref" and {1, 2, 65} <= set(c["batches"])
    assert 0 <= c["rows_compared"] <= c["rows"] == sum(f["rows"] for f in report["formats"])
    assert c["rows_compared"] == sum(f["rows_compared"] for f in report["formats"])
    usable = [i["name"] for i in json.loads(deepinfer("info", "--json").stdout)["isas"] if i["usable"]]
    assert c["isas"] == usable


def test_all_and_a_budget_of_zero(deepinfer, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", mxfp8(200, 320))
    every = verify_json(deepinfer, tmp_path, "--all")["comparison"]
    assert every["rows_compared"] == every["rows"] == 200 and every["percent"] == 100
    assert every["outputs"] > 1000 and "budget_seconds" not in every
    none = verify_json(deepinfer, tmp_path, "--budget", "0s")["comparison"]
    assert none["rows_compared"] == none["outputs"] == none["percent"] == 0 and none["rows"] == 200
    done = deepinfer("verify", str(tmp_path), "--budget", "0s")
    assert done.returncode == 0 and "0.0 % of the rows compared, so no bit is proved" in done.stdout


def test_case_053_nan_scale_is_named(deepinfer, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", mxfp8(4010, 608, (4001, 18), 0xFF))
    done = deepinfer("verify", str(tmp_path), "--budget", "0s")
    assert done.returncode == 1
    verdict = done.stdout.splitlines()[-1]
    assert verdict == "FAILED: w.weight_scale [4001,18] is 0xff: NaN scale"
    report = verify_json(deepinfer, tmp_path, "--budget", "0s", code=1)
    assert report["ok"] is False and report["verdict"] == verdict
    (finding,) = [f for f in report["findings"] if f["error"]]
    assert finding == {
        "kind": "nan_scale",
        "error": True,
        "tensor": "w.weight_scale",
        "count": 1,
        "first": [{"index": [4001, 18], "bits": "0xff"}],
    }


def test_case_001_nan_code_is_named_and_the_bits_still_agree(deepinfer, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", mxfp8(64, 96, code_at=(3, 70), code=0x7F))
    report = verify_json(deepinfer, tmp_path, "--all", code=1)
    assert report["verdict"] == "FAILED: w.weight [3,70] is 0x7f: NaN code"
    assert report["comparison"]["rows_compared"] == 64 and report["comparison"]["differences"] == 0


def test_case_006_byte_0_is_a_remark(deepinfer, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", mxfp8(64, 96, (40, 1), 0))
    done = deepinfer("verify", str(tmp_path), "--budget", "0s")
    assert done.returncode == 0
    assert "remark: 1 zero scale in 1 tensor, the first: w.weight_scale [40,1] is 0x00" in done.stdout


def test_a_weight_without_scales_fails(deepinfer, tmp_path):
    tensors = mxfp8(64, 96)
    del tensors["w.weight_scale"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    done = deepinfer("verify", str(tmp_path))
    assert done.returncode == 1 and "w.weight: data type F8_E4M3 needs scales" in done.stdout.splitlines()[-1]


def test_what_cannot_run_is_said(deepinfer, tmp_path):
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {"v.weight": ("BF16", [12, 32], b"\x80\x3f" * 12 * 32)}
    for name in "a", "b":
        tensors[name + ".weight"] = ("U8", [4, 16], bytes([0x11]) * 64)
        tensors[name + ".weight_scale"] = ("F8_E4M3", [4, 2], bytes([ONE]) * 8)
        tensors[name + ".weight_scale_2"] = ("F32", [], struct.pack("<f", 1))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    done = deepinfer("verify", str(tmp_path), "--all")
    assert done.returncode == 0, done.stdout
    assert "not compared: 2 weights cannot run, the first: a.weight: no kernel takes NVFP4" in done.stdout
    verdict = "ok: every byte is valid; 60.0 % of the rows compared, every bit equal; 2 weights cannot run"
    assert done.stdout.splitlines()[-1] == verdict
    report = verify_json(deepinfer, tmp_path, "--all")
    assert report["verdict"] == verdict and report["comparison"]["rows_compared"] == 12
    assert [weight["tensor"] for weight in report["cannot_run"]] == ["a.weight", "b.weight"]
    assert "NVFP4" in report["cannot_run"][0]["reason"]


def test_many_errors_fit_on_a_screen(deepinfer, tmp_path):
    nan = struct.pack("<f", float("nan"))
    tensors = {f"n{i:02}": ("F32", [1], nan) for i in range(30)}
    tensors["bad\x1b[31m"] = ("F32", [1], nan)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    done = deepinfer("verify", str(tmp_path))
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) < 30 and "in 21 more tensors" in done.stdout
    assert len(verify_json(deepinfer, tmp_path, code=1)["findings"]) == 31


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--bugdet", "2s"], "did you mean --budget?"),
        (["--budget", "5"], "--budget"),
        (["--budget", "fast"], "--budget"),
        (["--budget=-1s"], "--budget"),
        (["--budget", "nans"], "--budget"),
        (["--budget", "1e99h"], "--budget"),
        (["--budget", "2 m"], "--budget"),
        (["--budget", "5s", "--all"], "--all"),
        (["another"], "another"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_usage(deepinfer, tmp_path, arguments, word):
    done = deepinfer("verify", str(tmp_path), *arguments)
    assert done.returncode == 2 and word in done.stderr, done.stderr


def test_what_is_no_checkpoint_exits_3(deepinfer, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"hello")
    for path in "/nowhere/at all", str(tmp_path):
        done = deepinfer("verify", path)
        assert done.returncode == 3 and path in done.stderr and not done.stdout
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(program, models, sent):
    """With a terminal for its progress, to know when it is comparing."""
    terminal, end = pty.openpty()
    arguments = [program, "verify", models["smollm2-bf16"], "--all"]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=end)
    os.close(end)
    shown = b""
    while b"bits" not in shown:
        shown += os.read(terminal, 4096)
    child.send_signal(sent)
    out, _ = child.communicate(timeout=60)
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # closed at the other end
            break
    os.close(terminal)
    assert child.returncode == 130 and out == b""
    assert b"interrupted, nothing is proved" in shown
