"""Checkpoint folders that the tests in this folder share."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Tokenizer, Qwen3Config

ROOT = Path(__file__).resolve().parent.parent.parent
SMOLLM2 = Path(os.environ.get("SMOLLM2_BF16", ROOT / "build" / "models" / "smollm2-bf16"))

# k is 80, 112 and 96: not all are multiples of 32, none is one of 64; heads are wider than
# hidden / heads.
RAGGED = {
    "vocab_size": 160,
    "hidden_size": 80,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
WHOLE = RAGGED | {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


# Rows of 576, 200, 144 and 40, columns of 144, 200 and 576: no side is whole in blocks of 128, and
# 5 * 40 is not the hidden size.
QWEN3 = RAGGED | {
    "vocab_size": 384,
    "hidden_size": 144,
    "intermediate_size": 576,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 40,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}


def write_random_llama(folder, shape, seed=1):
    return write_random_model(folder, LlamaConfig(**shape), seed)


def write_random_qwen3(folder, tied=False, seed=1):
    return write_random_model(folder, Qwen3Config(**QWEN3 | {"tie_word_embeddings": tied}), seed)


def write_random_model(folder, config, seed):
    """A random bf16 checkpoint whose norms and logits are far from trivial.

    Linears keep the size of what they are given, so that scores stay near 1: models that round
    scores to bf16 turn large ones into large errors of the probabilities.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


# ----------------------------------------------------------------------
# Qwen3-FP8 as it is published

FP8_BLOCK = 128
E4M3_MAX = 448.0
PROJECTIONS = tuple(f"{x}_proj.weight" for x in ("q", "k", "v", "o", "gate", "up", "down"))


def expand(grid, n, k):
    """A scale for each weight: [ceil(n/128), ceil(k/128)] -> [n, k]."""
    return grid.repeat_interleave(FP8_BLOCK, 0)[:n].repeat_interleave(FP8_BLOCK, 1)[:, :k]


def publish_as_fp8(source, target, scale_dtype):
    """Rewrites a bf16 checkpoint in the names, types and config of Qwen3-*-FP8: e4m3 codes, one
    scale amax / 448 for 128x128 weights, rounded to `scale_dtype`, as `weight_scale_inv`.

    Returns the weights that the codes mean, {name: f32}, for every tensor of the checkpoint.
    """
    tensors, meant = {}, {}
    for name, w in load_file(source / "model.safetensors").items():
        tensors[name], meant[name] = w, w.float()
        if not name.endswith(PROJECTIONS):
            continue
        n, k = w.shape
        padded = torch.nn.functional.pad(w.float().abs(), (0, -k % FP8_BLOCK, 0, -n % FP8_BLOCK))
        blocks = padded.unflatten(0, (-1, FP8_BLOCK)).unflatten(2, (-1, FP8_BLOCK))
        scales = (blocks.amax(dim=(1, 3)) / E4M3_MAX).to(scale_dtype)
        each = expand(scales.float(), n, k)
        codes = (w.float() / each).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
        meant[name] = codes.float() * each
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head", "model.embed_tokens", "model.norm"],
        "quant_method": "fp8",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return meant


def write_qwen_tokenizer(folder):
    """A tokenizer of Qwen's kind (byte-level BPE, NFC, its pattern for words) with few merges, in
    the files that transformers writes. Its ids end before the model's 384 rows, as Qwen's do."""
    letters = ["The capital of France is Paris. Don't we all know it?\n\n", "user assistant system"]
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(letters * 20, 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    return tokenizer
