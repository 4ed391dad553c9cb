"""Checkpoint folders that the tests in this folder share."""

import os
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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


def write_random_llama(folder, shape, seed=1):
    """A random bf16 checkpoint whose norms and logits are far from trivial.

    Linears keep the size of what they are given, so that scores stay near 1: models that round
    scores to bf16 turn large ones into large errors of the probabilities.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
