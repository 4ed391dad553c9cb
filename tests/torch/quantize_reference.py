#!/usr/bin/env python3
"""Codes and scales of quantized weights in plain torch: an oracle for the bytes of our quantizer.

    python tests/torch/quantize_reference.py IN_DIR OUT_DIR --scheme fp8_32x32|mxfp4_mix

Power-of-two scales follow the round-up rule: the scale of a block is the smallest power of two s
with max(amax, floor) <= limit * s, so that nothing saturates. x / s is exact. Codes are the
nearest, ties to the even code, zeros keep their sign.

    e4m3fn: limit 448, floor 1e-4        e2m1: limit 6, floor 6 * 2^-126
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

E4M3_LIMIT, E4M3_FLOOR = 448.0, 1e-4
E2M1_LIMIT, E2M1_FLOOR = 6.0, 6.0 * 2.0**-126
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127
MX_BLOCK = 32

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def power_of_two_exponent(amax, limit):
    """The smallest j with amax <= limit * 2^j, element by element; amax is f32, positive,
    finite."""
    limit_mantissa, limit_exponent = math.frexp(limit)  # limit = mantissa * 2^exponent, [0.5, 1)
    mantissa, exponent = torch.frexp(amax)
    return exponent - limit_exponent + (mantissa > limit_mantissa).int()


def block_amax(w, block_n, block_k):
    """[n, k] -> [ceil(n/block_n), ceil(k/block_k)], the last blocks may be short."""
    n, k = w.shape
    padded = torch.nn.functional.pad(w.abs(), (0, -k % block_k, 0, -n % block_n))
    rows, columns = padded.shape[0] // block_n, padded.shape[1] // block_k
    return padded.reshape(rows, block_n, columns, block_k).amax(dim=(1, 3))


def expand_blocks(grid, block_n, block_k, n, k):
    """[ceil(n/block_n), ceil(k/block_k)] -> [n, k]."""
    return grid.repeat_interleave(block_n, 0)[:n].repeat_interleave(block_k, 1)[:, :k]


def power_of_two(exponent):
    """2^exponent in f32, from -127 to 127, from a table: torch.pow promises no exact powers."""
    table = torch.tensor([math.ldexp(1.0, j) for j in range(-127, 128)])
    return table[(exponent + 127).long()]


def check_finite(w):
    if not torch.isfinite(w).all():
        raise ValueError("a weight that holds a NaN or an infinity cannot be quantized")


def encode_e4m3fn(x):
    """f32 -> e4m3fn codes as uint8, nearest even, saturating; NaN is 0x7F."""
    x = x.float()
    codes = x.clamp(-E4M3_LIMIT, E4M3_LIMIT).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(x.isnan(), torch.full_like(codes, 0x7F), codes)


def encode_e2m1(x):
    """f32 -> e2m1 codes 0..15 as uint8, nearest, ties to the even code, saturating; no NaN."""
    # The code is the number of midpoints below |x|. A midpoint goes up only to an even code.
    code = torch.zeros(x.shape, dtype=torch.uint8)
    for upper in range(1, len(E2M1_VALUES)):
        midpoint = (E2M1_VALUES[upper - 1] + E2M1_VALUES[upper]) / 2
        code += (x.abs() >= midpoint) if upper % 2 == 0 else (x.abs() > midpoint)
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def quantize_e4m3fn(w, block_n, block_k):
    """[n, k] -> (codes uint8 [n, k], e8m0 scale bytes [ceil(n/block_n), ceil(k/block_k)])."""
    w = w.float()
    check_finite(w)
    amax = block_amax(w, block_n, block_k).clamp(min=E4M3_FLOOR)
    exponent = power_of_two_exponent(amax, E4M3_LIMIT)
    scale = expand_blocks(power_of_two(exponent), block_n, block_k, *w.shape)
    return encode_e4m3fn(w / scale), (exponent + E8M0_BIAS).to(torch.uint8)


def quantize_e4m3fn_f32_scales(w, block_n, block_k):
    """As quantize_e4m3fn with scales amax / 448 in f32 and codes e4m3fn(x * (1 / s))."""
    w = w.float()
    check_finite(w)
    scale = block_amax(w, block_n, block_k).clamp(min=E4M3_FLOOR) / E4M3_LIMIT
    return encode_e4m3fn(w * expand_blocks(1.0 / scale, block_n, block_k, *w.shape)), scale


def quantize_mxfp4(w):
    """[n, k] -> (packed uint8 [n, k/2], e8m0 scales [n, ceil(k/32)]); even k in the low nibble."""
    w = w.float()
    check_finite(w)
    n, k = w.shape
    if k % 2:
        raise ValueError(f"mxfp4 needs an even k, found {k}")
    amax = block_amax(w, 1, MX_BLOCK).clamp(min=E2M1_FLOOR)
    exponent = power_of_two_exponent(amax, E2M1_LIMIT)
    codes = encode_e2m1(w / expand_blocks(power_of_two(exponent), 1, MX_BLOCK, n, k))
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed, (exponent + E8M0_BIAS).to(torch.uint8)


# ----------------------------------------------------------------------
# whole checkpoints

FP8_CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [32, 32],
}
MIX_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "format": "float-quantized",
            "targets": ["re:.*self_attn.*_proj"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "block",
                "block_structure": [32, 32],
                "symmetric": True,
                "dynamic": False,
            },
        },
        "group_1": {
            "format": "mxfp4-pack-quantized",
            "targets": ["re:.*mlp.*_proj"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": MX_BLOCK,
                "symmetric": True,
                "dynamic": False,
            },
        },
    },
    "ignore": ["lm_head"],
}


def quantize_tensor(name, w, scheme):
    """One tensor of a checkpoint -> the tensors that replace it."""
    stem, is_weight, _ = name.rpartition(".weight")
    layer = stem.rpartition(".")[2]
    if not is_weight or layer not in ATTENTION + MLP:
        return {name: w}
    if scheme == "mxfp4_mix" and layer in MLP:
        packed, scales = quantize_mxfp4(w)
        return {f"{stem}.weight_packed": packed, f"{stem}.weight_scale": scales}
    codes, scales = quantize_e4m3fn(w, 32, 32)
    suffix = "weight_scale_inv" if scheme == "fp8_32x32" else "weight_scale"
    return {
        f"{stem}.weight": codes.view(torch.float8_e4m3fn),
        f"{stem}.{suffix}": scales.view(torch.float8_e8m0fnu),
    }


def quantize_checkpoint(source, target, scheme):
    source, target = Path(source), Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for extra in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (source / extra).is_file():
            shutil.copyfile(source / extra, target / extra)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = FP8_CONFIG if scheme == "fp8_32x32" else MIX_CONFIG
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {}
    with safe_open(source / "model.safetensors", framework="pt") as f:
        for name in f.keys():  # noqa: SIM118 (not a dict)
            tensors.update(quantize_tensor(name, f.get_tensor(name), scheme))
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description="Quantize a bf16 Llama checkpoint, slowly.")
    parser.add_argument("source", type=Path, metavar="IN_DIR")
    parser.add_argument("target", type=Path, metavar="OUT_DIR")
    parser.add_argument("--scheme", choices=("fp8_32x32", "mxfp4_mix"), required=True)
    args = parser.parse_args()
    quantize_checkpoint(args.source, args.target, args.scheme)


if __name__ == "__main__":
    main()
