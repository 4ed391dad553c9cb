"""The program itself against transformers, and its perplexity against the reference."""

import json
import math
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import ROOT
from reference_llama import load, perplexity
from transformers import AutoModelForCausalLM

PROGRAM = ROOT / "build" / "deepinfer"
MODELS = ROOT / "build" / "models"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "transcripts.json").read_text())
FOLDERS = {"bf16": "smollm2-bf16", "fp8": "smollm2-fp8-32x32", "mxfp4": "smollm2-mxfp4"}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def our_logits(folder, prompt):
    """Logits after the prompt, f32 [vocabulary], and the ids the program saw."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "logits"
        arguments = ["run", folder, "--raw", "--prompt", prompt, "--max-tokens", "1", "--json"]
        done = subprocess.run([PROGRAM, *arguments, "--logits", file], capture_output=True, check=True)
        return np.fromfile(file, dtype="<f4"), json.loads(done.stdout)["prompt_ids"]


def rms(x):
    return float(x.double().pow(2).mean().sqrt())


def test_bf16_logits_are_near_transformers():
    """The tolerance is derived in test_reference.test_rounded_logits_are_near_a_bf16_model."""
    folder = MODELS / FOLDERS["bf16"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    for prompt in GOLDEN["prompts"]:
        logits, ids = our_logits(folder, prompt["text"])
        expected = model(torch.tensor([ids])).logits[0, -1].float()
        difference = torch.from_numpy(logits) - expected
        layers = model.config.num_hidden_layers
        sigma = rms(expected) * math.sqrt(2 * 16 * layers) * 2.0**-9 / math.sqrt(3)
        assert rms(difference) <= 2 * sigma
        assert float(difference.abs().max()) <= 12 * sigma


def test_stock_transformers_loads_our_fp8_file():
    """Widened by transformers it is another arithmetic (no activation quantization): near, not equal."""
    folder = MODELS / FOLDERS["fp8"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompt = GOLDEN["prompts"][0]
    ids = torch.tensor([prompt["ids"]])
    expected = model(ids).logits[0, -1].float()
    logits, _ = our_logits(folder, prompt["text"])
    assert int(expected.argmax()) == int(logits.argmax())
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(logits), expected, dim=0)
    assert cosine > 0.99


@pytest.mark.parametrize("name", FOLDERS)
def test_perplexity_of_the_reference_is_ours(name):
    """On few tokens, live; tests/cli/test_transcripts.py compares more of them with golden figures."""
    ids = GOLDEN["perplexity_text"]["ids"][:513]
    expected = perplexity(load(MODELS / FOLDERS[name]), ids, context=1024, tokens=512)
    arguments = ["--file", str(ROOT / "build" / "jargon.txt"), "--tokens", "512", "--json"]
    done = subprocess.run([PROGRAM, "perplexity", MODELS / FOLDERS[name], *arguments], capture_output=True, check=True)
    assert json.loads(done.stdout)["perplexity"] == pytest.approx(expected, rel=0.016)
