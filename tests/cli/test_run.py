"""`deepinfer run` as people use it: text, JSON, pipes, Ctrl-C, counters, memory."""

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

QUESTION = "What is the capital of France?"


def run_json(deepinfer, model, *args, **keywords):
    done = deepinfer("run", model, "--prompt", QUESTION, "--json", *args, **keywords)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["smollm2-bf16", "smollm2-fp8-32x32", "smollm2-mxfp4"])
def test_answers_a_question(deepinfer, models, name):
    done = deepinfer("run", models[name], "--prompt", QUESTION)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "GB/s" in done.stderr and "stopped: end of text" in done.stderr


def test_same_bits_on_every_isa_and_thread_count(deepinfer, models):
    isas = [i["name"] for i in json.loads(deepinfer("info", "--json").stdout)["isas"] if i["usable"]]
    for name, model in models.items():
        digests = set()
        for isa in isas:
            for threads in (1, 2, 3) if isa != "ref" else (2,):
                # the reference is slow: its whole matrix is in model_test, on tiny models
                env = {"DEEPINFER_ISA": isa, "DEEPINFER_THREADS": str(threads)}
                out = run_json(deepinfer, model, "--raw", "--max-tokens", "2", "--logits-digest", env=env)
                assert out["isa"] == isa and out["threads"] == threads
                digests.add((out["logits_digest"], tuple(out["ids"])))
        assert len(digests) == 1, name


def test_sampling_repeats_with_its_seed(deepinfer, models):
    options = ["--temperature", "1", "--top-k", "50", "--top-p", "0.9", "--max-tokens", "12"]
    model = models["smollm2-fp8-32x32"]
    first = run_json(deepinfer, model, *options, "--seed", "1")
    assert run_json(deepinfer, model, *options, "--seed", "1")["ids"] == first["ids"]
    others = [run_json(deepinfer, model, *options, "--seed", str(s))["ids"] for s in (2, 3, 4)]
    assert any(ids != first["ids"] for ids in others)


def safetensors_entries(folder):
    with open(Path(folder) / "model.safetensors", "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    return header


@pytest.mark.parametrize("name", ["smollm2-bf16", "smollm2-fp8-32x32", "smollm2-mxfp4"])
def test_counters_and_private_memory(deepinfer, models, name):
    """Every reported number follows its formula; private memory is 3 % of the checkpoint + 8 MiB."""
    out = run_json(deepinfer, models[name], "--max-tokens", "16")
    memory = out["memory"]
    config = json.loads((Path(models[name]) / "config.json").read_text())
    entries = safetensors_entries(models[name])
    # a decode step reads every linear weight and its scales, and the tied head, but no norms
    linear = sum(e["data_offsets"][1] - e["data_offsets"][0] for n, e in entries.items() if "norm" not in n)
    assert out["weight_bytes_per_token"] == linear
    positions = len(out["prompt_ids"]) + 16
    kv = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2
    assert memory["kv_bytes"] == positions * kv
    assert memory["checkpoint_bytes"] == os.path.getsize(Path(models[name]) / "model.safetensors")
    known = memory["kv_bytes"] + memory["activation_bytes"] + memory["tokenizer_bytes"]
    allowed = 0.03 * memory["checkpoint_bytes"] + 8 * 2**20
    assert memory["private_bytes"] - known <= allowed, memory
    # the reported parts are real: without them the process would be impossibly small
    assert memory["private_bytes"] >= 0.5 * memory["tokenizer_bytes"], memory
    assert memory["activation_bytes"] < 32 * 2**20
    rate = out["decode_tokens_per_second"]
    assert out["decode_gbps"] == pytest.approx(rate * out["weight_bytes_per_token"] / 1e9)


def test_closed_pipe_ends_quietly(program, models):
    command = f"{program} run {models['smollm2-mxfp4']} --prompt '{QUESTION}' 2>&1 >/dev/full | cat"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "could not be written" in done.stdout
    command = f"{program} run {models['smollm2-mxfp4']} --prompt 'Tell me a long story.' | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert len(done.stdout) == 10
    assert "terminate" not in done.stderr and "Aborted" not in done.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_ends_the_text_and_reports(program, models, sent):
    arguments = ["run", models["smollm2-bf16"], "--raw", "--prompt", "1, 2, 3, 4,", "--max-tokens", "2000"]
    child = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.read(4)  # text is streaming
    child.send_signal(sent)
    begin = time.monotonic()
    _, err = child.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert child.returncode == 130
    assert b"stopped: interrupted" in err


def test_prompt_from_standard_input(deepinfer, models):
    done = deepinfer("run", models["smollm2-mxfp4"], "--prompt", "-", "--max-tokens", "4", input=QUESTION)
    assert done.returncode == 0 and done.stdout.strip()


def test_prompt_longer_than_the_context(deepinfer, models):
    done = deepinfer("run", models["smollm2-mxfp4"], "--raw", "--prompt", "-", input="word " * 9000)
    assert done.returncode == 2
    assert "9001 tokens" in done.stderr and "8192" in done.stderr


def test_stops_at_the_end_of_the_context(deepinfer, models):
    out = run_json(deepinfer, models["smollm2-mxfp4"], "--max-tokens", "5")
    assert out["stop"] in ("max tokens", "end of text") and len(out["ids"]) <= 5


def test_a_long_prompt_can_be_interrupted(program, models):
    arguments = ["run", models["smollm2-bf16"], "--raw", "--prompt", "word " * 4000]
    child = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = child.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert child.returncode == 130 and b"stopped: interrupted" in err
