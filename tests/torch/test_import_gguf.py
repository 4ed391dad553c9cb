"""tools/import_gguf.py on a tiny GGUF written here. Needs numpy and gguf only."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "import_gguf.py"
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 64, 4, 2, 96, 2
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|end|>", "<|start|>", "a", "b", "ab", "Ġ"]
LAYER_SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def make_tensors():
    random = np.random.default_rng(1)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in LAYER_SHAPES.items()}
    return {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def write_gguf(path, tensors, arch="llama", pre="smollm"):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    for name, w in tensors.items():
        if name.endswith("ffn_up.weight"):
            w = gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, w, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(*args):
    return subprocess.run([sys.executable, TOOL, *args], capture_output=True, text=True)


def read_safetensors(path):
    """Name -> f32 array, after a check of the layout."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__")["format"] == "pt"
    assert list(header) == sorted(header)
    result, end = {}, 0
    for name, entry in header.items():
        assert entry["dtype"] == "BF16" and entry["data_offsets"][0] == end
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(data[8 + length + begin : 8 + length + end], "<u2").astype(np.uint32)
        result[name] = (bits << 16).view(np.float32).reshape(entry["shape"])
    assert 8 + length + end == len(data)
    return result


def nearest_bf16(w):
    """By distance, not by bits: the closer one of the two neighbours (no ties in random data)."""
    down = (w.view(np.uint32) & 0xFFFF0000).view(np.float32)
    up = ((w.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    return np.where(np.abs(w - down) <= np.abs(up - w), down, up)


def test_import(tmp_path):
    tensors = make_tensors()
    write_gguf(tmp_path / "tiny.gguf", tensors)
    result = run(tmp_path / "tiny.gguf", tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "out.partial").exists()
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert len(found) == len(tensors)
    layer = "model.layers.1"
    for name, source in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        (f"{layer}.self_attn.v_proj.weight", "blk.1.attn_v.weight"),
        (f"{layer}.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        (f"{layer}.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"),
    ):
        assert np.array_equal(found[name], nearest_bf16(tensors[source]))
    # Row by row: element i of half h of a head lies at 2 i + h in GGUF.
    for name, source, heads in (("q", "attn_q", HEADS), ("k", "attn_k", KV_HEADS)):
        rows = nearest_bf16(tensors[f"blk.1.{source}.weight"])
        for head in range(heads):
            for half in range(2):
                for i in range(HEAD_DIM // 2):
                    to_row = head * HEAD_DIM + half * HEAD_DIM // 2 + i
                    from_row = head * HEAD_DIM + 2 * i + half
                    w = found[f"{layer}.self_attn.{name}_proj.weight"]
                    assert np.array_equal(w[to_row], rows[from_row])
    up = found[f"{layer}.mlp.up_proj.weight"]
    assert 0 < np.abs(up - tensors["blk.1.ffn_up.weight"]).max() < 0.5  # half a step of Q4_1

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "llama" and config["tie_word_embeddings"] is True
    assert config["head_dim"] == HEAD_DIM and config["rms_norm_eps"] == 1e-05
    assert config["rope_theta"] == 10000.0 and config["max_position_embeddings"] == 128
    tokenizer = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert [t["content"] for t in tokenizer["added_tokens"]] == ["<|end|>", "<|start|>"]
    assert tokenizer["model"]["vocab"]["Ġ"] == 5 and tokenizer["model"]["merges"] == ["a b"]


def test_untied_head_and_context(tmp_path):
    tensors = make_tensors() | {"output.weight": np.ones((len(TOKENS), HIDDEN), np.float32)}
    write_gguf(tmp_path / "tiny.gguf", tensors)
    assert run(tmp_path / "tiny.gguf", tmp_path / "out", "--context", "64").returncode == 0
    assert "lm_head.weight" in read_safetensors(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False and config["max_position_embeddings"] == 64


def test_bf16_rounding_is_nearest_even(tmp_path):
    tensors = make_tensors()
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x00018000, 0x80008000]
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x0002, 0x8000]
    tensors["output_norm.weight"][: len(bits)] = np.array(bits, np.uint32).view(np.float32)
    write_gguf(tmp_path / "tiny.gguf", tensors)
    assert run(tmp_path / "tiny.gguf", tmp_path / "out").returncode == 0
    norm = read_safetensors(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert (norm[: len(bits)].view(np.uint32) >> 16).tolist() == expected


def test_complete_folder_is_left_alone(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", make_tensors())
    assert run(tmp_path / "tiny.gguf", tmp_path / "out").returncode == 0
    (tmp_path / "out" / "config.json").write_text("{}")
    assert run(tmp_path / "tiny.gguf", tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert run(tmp_path / "tiny.gguf", tmp_path / "out", "--force").returncode == 0
    assert (tmp_path / "out" / "config.json").read_text() != "{}"


def test_foreign_files_are_never_deleted(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", make_tensors())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert run(tmp_path / "tiny.gguf", tmp_path / "out", "--force").returncode == 2
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("what", ["arch", "pre", "extra", "missing", "shape", "nan", "cut", "junk"])
def test_refusals_are_one_line_and_leave_nothing(what, tmp_path):
    tensors, options, path = make_tensors(), {}, tmp_path / "tiny.gguf"
    if what == "arch":
        options["arch"] = "qwen2"
    if what == "pre":
        options["pre"] = "other"
    if what == "extra":
        tensors["blk.0.attn_q.bias"] = np.zeros(HIDDEN, np.float32)
    if what == "missing":
        del tensors["blk.1.ffn_gate.weight"]
    if what == "shape":
        tensors["blk.0.attn_v.weight"] = np.zeros((HIDDEN, HIDDEN), np.float32)
    if what == "nan":
        tensors["blk.0.attn_v.weight"][3, 3] = np.nan
    write_gguf(path, tensors, **options)
    if what == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    if what == "junk":
        path.write_bytes(b"no GGUF at all")
    result = run(path, tmp_path / "out")
    assert result.returncode == 3
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]
