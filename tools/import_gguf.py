#!/usr/bin/env python3
"""Turn a Llama-architecture GGUF file into a Hugging Face style checkpoint folder.

    python tools/import_gguf.py MODEL.gguf OUT_DIR [--context N] [--force]

OUT_DIR gets model.safetensors (BF16, the standard Llama names), config.json,
generation_config.json, tokenizer.json and tokenizer_config.json. It is written as OUT_DIR.partial
and renamed at the end, so a folder under its final name is complete; a complete one is left alone
without --force.

Weights are dequantized to f32 and rounded to bf16 once, nearest even. A tied head is not written.

Row order of q and k: GGUF holds the rows of each head as pairs (i, i + head_dim/2), because
llama.cpp turns neighbouring elements; the checkpoint layout turns the two halves of a head. So the
rows are put back here: row (h, i, half) of GGUF is row (h, half, i) of the checkpoint.

Exit codes: 0 done or nothing to do, 2 usage, 3 an input that is broken or not supported.
"""

import argparse
import json
import os
import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

GLOBAL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
TOKEN_CONTROL, TOKEN_USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


class InputError(Exception):
    """The file is broken, or says something this importer does not know."""


# ----------------------------------------------------------------------
# reading


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader):
        self.fields = reader.fields

    def get(self, key, default=None):
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key):
        if key not in self.fields:
            raise InputError(f"metadata key {key} is missing")
        return self.get(key)


def open_gguf(path):
    if not path.is_file():
        raise InputError("no such file")
    try:
        return gguf.GGUFReader(path)
    except Exception as e:  # the reader has no error type of its own for hostile bytes
        raise InputError(f"not a readable GGUF file ({type(e).__name__}: {e})") from None


def f32_decimal(x):
    """The shortest decimal of a number stored as f32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(x)))


def make_config(meta, tensor_names, context):
    arch = meta.need("general.architecture")
    if arch != "llama":
        raise InputError(f"architecture '{arch}' is not supported (only 'llama')")
    if meta.get("llama.expert_count", 0):
        raise InputError("llama.expert_count: mixtures of experts are not supported")
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensor_names:
        raise InputError(f"RoPE scaling is not supported (llama.rope.scaling.type '{scaling}')")

    hidden = meta.need("llama.embedding_length")
    heads = meta.need("llama.attention.head_count")
    kv_heads = meta.get("llama.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise InputError("head counts that differ between layers are not supported")
    if heads <= 0 or kv_heads <= 0 or heads % kv_heads:
        raise InputError(f"{heads} heads cannot share {kv_heads} KV heads")
    head_dim = meta.get("llama.attention.key_length", hidden // heads)
    if head_dim % 2 or meta.get("llama.attention.value_length", head_dim) != head_dim:
        raise InputError(f"head dimension {head_dim} is odd or differs between k and v")
    rope_dim = meta.get("llama.rope.dimension_count", head_dim)
    if rope_dim != head_dim:
        raise InputError(f"RoPE over {rope_dim} of {head_dim} elements is not supported")

    tokens = meta.need("tokenizer.ggml.tokens")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta.need("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.need("tokenizer.ggml.eos_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta.need("llama.feed_forward_length"),
        "max_position_embeddings": context or meta.need("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta.need("llama.block_count"),
        "num_key_value_heads": kv_heads,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": f32_decimal(meta.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": f32_decimal(meta.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": meta.get("llama.vocab_size", len(tokens)),
    }


# ----------------------------------------------------------------------
# weights


def expected_shapes(config):
    """Checkpoint name -> shape [n, k] or [n], for every tensor that must be there."""
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    vocab = config["vocab_size"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inter, hidden),
        "mlp.up_proj.weight": (inter, hidden),
        "mlp.down_proj.weight": (hidden, inter),
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def checkpoint_name(name):
    """model.layers.3.self_attn.q_proj.weight for blk.3.attn_q.weight."""
    if name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in LAYER_TENSORS:
        return f"model.layers.{int(parts[1])}.{LAYER_TENSORS[parts[2]]}"
    raise InputError(f"tensor {name} is not known in the llama architecture")


def match_tensors(reader, config):
    """Checkpoint name -> GGUF tensor, sorted by name, names and shapes checked."""
    shapes = expected_shapes(config)
    found = {}
    for tensor in reader.tensors:
        name = checkpoint_name(tensor.name)
        shape = tuple(int(d) for d in reversed(tensor.shape))
        if name not in shapes or name in found:
            raise InputError(f"tensor {tensor.name} is one too many")
        if shape != shapes[name]:
            raise InputError(f"tensor {tensor.name}: expected shape {shapes[name]}, found {shape}")
        found[name] = tensor
    missing = sorted(shapes.keys() - found.keys())
    if missing:
        raise InputError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    return dict(sorted(found.items())), shapes


def rotate_half_rows(w, num_heads):
    """[n, k] with rows (h, i, half) -> rows (h, half, i)."""
    n, k = w.shape
    pairs = w.reshape(num_heads, n // num_heads // 2, 2, k)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(n, k)


def bf16_bits(x):
    """f32 -> bf16 bits, nearest even; x holds no NaN."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def load_bf16(name, tensor, shape, config):
    try:
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise InputError(f"tensor {tensor.name}: no decoder for its type") from None
    w = np.ascontiguousarray(w, dtype=np.float32).reshape(shape)
    if not np.isfinite(w).all():
        raise InputError(f"tensor {tensor.name} holds a NaN or an infinity")
    if name.endswith("q_proj.weight"):
        w = rotate_half_rows(w, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        w = rotate_half_rows(w, config["num_key_value_heads"])
    return bf16_bits(w)


def write_safetensors(path, tensors, shapes, config, metadata):
    """8 bytes header length, the header (JSON padded with spaces to 8), data sorted by name."""
    header, end = {"__metadata__": metadata}, 0
    for name in tensors:
        begin, end = end, end + 2 * int(np.prod(shapes[name], dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    show = sys.stderr.isatty()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for i, (name, tensor) in enumerate(tensors.items()):
            if show:
                print(f"\r\033[K{i + 1}/{len(tensors)} {name}", end="", file=sys.stderr, flush=True)
            f.write(load_bf16(name, tensor, shapes[name], config).tobytes())
        if show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ----------------------------------------------------------------------
# tokenizer


def make_tokenizer(meta):
    """The content of tokenizer.json: byte-level BPE, digits split one by one."""
    model, pre = meta.need("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre != "smollm":
        raise InputError(
            f"tokenizer '{model}' with pre-tokenizer '{pre}' is not supported (only gpt2, smollm)"
        )
    if meta.get("tokenizer.ggml.add_bos_token", False):
        raise InputError("tokenizer.ggml.add_bos_token true is not supported")
    tokens = meta.need("tokenizer.ggml.tokens")
    types = meta.need("tokenizer.ggml.token_type")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or len(types) != len(tokens):
        raise InputError("the vocabulary has duplicates or lacks token types")
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TOKEN_CONTROL,
        }
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (TOKEN_CONTROL, TOKEN_USER_DEFINED)
    ]
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", **byte_level},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": meta.need("tokenizer.ggml.merges"),
        },
    }


def make_tokenizer_config(meta, config, tokenizer):
    tokens = meta.need("tokenizer.ggml.tokens")
    result = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(t["id"]): {key: t[key] for key in t if key != "id"}
            for t in tokenizer["added_tokens"]
        },
        "chat_template": meta.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        # The generic class takes tokenizer.json as it is; GPT2Tokenizer builds its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for role, key in (
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ):
        i = meta.get(key)
        if i is not None and not 0 <= i < len(tokens):
            raise InputError(f"{key} {i} is outside the vocabulary of {len(tokens)}")
        if i is not None:
            result[role] = tokens[i]
    return result


def make_generation_config(config):
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: config[key] for key in keys if config[key] is not None}


# ----------------------------------------------------------------------
# the folder


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def import_model(source, folder, context):
    reader = open_gguf(source)
    meta = Metadata(reader)
    config = make_config(meta, {t.name for t in reader.tensors}, context)
    tensors, shapes = match_tensors(reader, config)
    tokenizer = make_tokenizer(meta)
    provenance = {"format": "pt", "imported_from": source.name}
    for key in ("general.name", "general.license"):
        if meta.get(key):
            provenance[key] = str(meta.get(key))
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", make_generation_config(config))
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", make_tokenizer_config(meta, config, tokenizer))
    write_safetensors(folder / "model.safetensors", tensors, shapes, config, provenance)


def only_ours(folder):
    return folder.is_dir() and all(entry.name in FILES for entry in folder.iterdir())


def main():
    parser = argparse.ArgumentParser(description="Import a Llama GGUF file as bf16 checkpoint.")
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--context", type=int, metavar="N", help="max_position_embeddings to write")
    parser.add_argument("--force", action="store_true", help="replace a folder this tool wrote")
    args = parser.parse_args()
    if args.context is not None and args.context <= 0:
        parser.error("--context must be positive")
    out = Path(os.path.abspath(args.out))
    partial = out.with_name(out.name + ".partial")
    if all((out / name).is_file() for name in FILES) and not args.force:
        print(f"{args.out} is complete, left as it is (--force replaces it)", file=sys.stderr)
        return 0
    for folder in (out, partial):
        if folder.exists() and not only_ours(folder):
            parser.error(f"{folder} exists and holds files that this tool did not write")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        import_model(args.model, partial, args.context)
    except (InputError, OSError) as e:
        shutil.rmtree(partial, ignore_errors=True)
        print(f"error: {args.model}: {e}", file=sys.stderr)
        return 3
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
