"""Headers of big releases: names, shapes and data types, SYNTHESIZED from published descriptions.

No byte of weights exists: the files are holes of the right length. Nothing here was copied from a
release; where a description leaves out a tensor (vision towers, some norms) so do we. Names of routed
experts, projections and scales, their shapes, data types and counts are those of the releases.
"""

import collections
import json

from families import fp8_config, v41_config
from tiny import header_of


def ceil_div(a, b):
    return -(-a // b)


class Giant:
    def __init__(self, config):
        self.config = config
        self.shards = []  # lists of (name, dtype, shape)
        self.quantized = collections.Counter()

    def shard(self):
        self.shards.append([])

    def add(self, name, dtype, *shape):
        self.shards[-1].append((name, dtype, shape))

    def fp8(self, module, n, k, block, dtype, scale):
        self.add(module + ".weight", "F8_E4M3", n, k)
        self.add(module + scale, dtype, ceil_div(n, block), ceil_div(k, block))
        self.quantized[f"fp8-{block}x{block}"] += 1

    def fp4(self, module, n, k):
        self.add(module + ".weight", "I8", n, k // 2)
        self.add(module + ".scale", "F8_E8M0", n, k // 32)
        self.quantized["mxfp4"] += 1

    def formats(self):
        """Weights of each format, and other tensors, by what was added."""
        count = {"bf16": 0, "other": 0}
        for name, dtype, shape in (row for shard in self.shards for row in shard):
            if dtype in ("BF16", "F32") and not name.endswith("weight_scale_inv"):
                is_weight = dtype == "BF16" and name.endswith(".weight") and len(shape) == 2
                count["bf16" if is_weight else "other"] += 1
        count.update(self.quantized)
        return count

    def num_tensors(self):
        return sum(map(len, self.shards))

    def write(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        weight_map = {}
        for i, shard in enumerate(self.shards):
            file = f"model-{i + 1:05}-of-{len(self.shards):05}.safetensors"
            header, data_bytes = header_of(shard)
            with open(folder / file, "wb") as out:
                out.write(header)
                out.truncate(len(header) + data_bytes)
            weight_map.update({name: file for name, _, _ in shard})
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def deepseek_v3_like(model_type, layers, hidden, heads, experts, dense, vocab, mtp):
    """DeepSeek-V3 and Kimi-K2: 128 x 128, F32, weight_scale_inv."""
    g = Giant({"model_type": model_type, "num_hidden_layers": layers, "quantization_config": fp8_config()})

    def fp8(module, n, k):
        g.fp8(module, n, k, 128, "F32", ".weight_scale_inv")

    def mlp(prefix, width):
        for name in "gate_proj", "up_proj":
            fp8(f"{prefix}.{name}", width, hidden)
        fp8(prefix + ".down_proj", hidden, width)

    for i in range(layers + mtp):
        g.shard()
        p = f"model.layers.{i}."
        fp8(p + "self_attn.q_a_proj", 1536, hidden)
        fp8(p + "self_attn.q_b_proj", heads * 192, 1536)
        fp8(p + "self_attn.kv_a_proj_with_mqa", 576, hidden)
        fp8(p + "self_attn.kv_b_proj", heads * 256, 512)
        fp8(p + "self_attn.o_proj", hidden, heads * 128)
        for norm in "input_layernorm", "post_attention_layernorm":
            g.add(p + norm + ".weight", "BF16", hidden)
        if i < dense:
            mlp(p + "mlp", 18432)
            continue
        for e in range(experts):
            mlp(f"{p}mlp.experts.{e}", 2048)
        mlp(p + "mlp.shared_experts", 2048)
        g.add(p + "mlp.gate.weight", "BF16", experts, hidden)
        g.add(p + "mlp.gate.e_score_correction_bias", "F32", experts)
        if i >= layers:
            g.add(p + "eh_proj.weight", "BF16", hidden, 2 * hidden)
            g.add(p + "embed_tokens.weight", "BF16", vocab, hidden)
            g.add(p + "shared_head.head.weight", "BF16", vocab, hidden)
    g.add("model.embed_tokens.weight", "BF16", vocab, hidden)
    g.add("lm_head.weight", "BF16", vocab, hidden)
    return g


def deepseek_v3():
    return deepseek_v3_like("deepseek_v3", 61, 7168, 128, 256, 3, 129280, 1)


def kimi_k2():
    return deepseek_v3_like("kimi_k2", 61, 7168, 64, 384, 1, 163840, 0)


def deepseek_v4_like(g, layers, hidden, heads, q_lora, width, experts, block, indexer, drafts):
    def fp8(module, n, k):
        g.fp8(module, n, k, block, "F8_E8M0", ".scale")

    for i in range(layers + drafts[0]):
        g.shard()
        p = f"layers.{i}." if i < layers else f"mtp.{i - layers}."
        fp8(p + "attn.wq_a", q_lora, hidden)
        fp8(p + "attn.wq_b", heads * 512, q_lora)
        fp8(p + "attn.wkv", 512, hidden)
        fp8(p + "attn.wo_a", 8192, 4096)
        fp8(p + "attn.wo_b", hidden, 8192)
        g.add(p + "attn.attn_sink", "F32", heads)
        for name, n in (("attn.q_norm", q_lora), ("attn.kv_norm", 512), ("attn_norm", hidden), ("ffn_norm", hidden)):
            g.add(p + name + ".weight", "BF16", n)
        for name in "attn", "ffn":
            g.add(f"{p}hc_{name}_fn", "F32", 24, 4 * hidden)
            g.add(f"{p}hc_{name}_base", "F32", 24)
            g.add(f"{p}hc_{name}_scale", "F32", 3)
        if i in indexer:
            fp8(p + "attn.indexer.wq_b", indexer[i], q_lora)
            g.add(p + "attn.indexer.weights_proj.weight", "BF16", indexer[i] // 128, hidden)
        count = experts if i < layers else drafts[1]
        g.add(p + "ffn.gate.weight", "BF16", count, hidden)
        g.add(p + "ffn.gate.bias", "F32", count)
        for name, n, k in ("w1", width, hidden), ("w2", hidden, width), ("w3", width, hidden):
            fp8(p + "ffn.shared_experts." + name, n, k)
            for e in range(count):
                g.fp4(f"{p}ffn.experts.{e}.{name}", n, k)
    for name in "embed", "head":
        g.add(name + ".weight", "BF16", 129280, hidden)
    g.add("norm.weight", "BF16", hidden)
    g.add("hc_head_scale", "F32", 1)
    return g


def deepseek_v4_flash():
    g = Giant({"model_type": "deepseek_v4", "num_hidden_layers": 43, "expert_dtype": "fp4",
               "quantization_config": fp8_config(scale_fmt="ue8m0")})
    return deepseek_v4_like(g, 43, 4096, 64, 1024, 2048, 256, 128, {i: 8192 for i in range(2, 43)}, (1, 256))


def deepseek_v41_flash():
    config = v41_config()
    config["text_config"]["num_hidden_layers"] = 40
    g = Giant(config)
    indexer = dict.fromkeys((2, 8, 14, 20, 24, 28, 32, 36), 4096)
    deepseek_v4_like(g, 40, 5120, 64, 1280, 2304, 384, 32, indexer, (3, 128))
    for layer, rows in (1, 384006168), (14, 384016682):
        g.shard()
        g.add(f"layers.{layer}.engram.embed.weight", "F8_E4M3", rows, 256)
        g.add(f"layers.{layer}.engram.embed.scale", "F8_E8M0", rows, 8)
        g.quantized["mxfp8"] += 1
        g.fp8(f"layers.{layer}.engram.wkv", 25600, 6144, 32, "F8_E8M0", ".scale")
    return g


def qwen3_235b_fp8():
    """Qwen3-235B-A22B: 94 layers, 128 experts; shapes from the architecture, BF16 scales."""
    g = Giant({"model_type": "qwen3_moe", "num_hidden_layers": 94, "quantization_config": fp8_config()})

    def fp8(module, n, k):
        g.fp8(module, n, k, 128, "BF16", ".weight_scale_inv")

    for i in range(94):
        g.shard()
        p = f"model.layers.{i}."
        for name, n, k in (("q", 8192, 4096), ("k", 512, 4096), ("v", 512, 4096), ("o", 4096, 8192)):
            fp8(f"{p}self_attn.{name}_proj", n, k)
        for e in range(128):
            for name, n, k in ("gate", 1536, 4096), ("up", 1536, 4096), ("down", 4096, 1536):
                fp8(f"{p}mlp.experts.{e}.{name}_proj", n, k)
        g.add(p + "mlp.gate.weight", "BF16", 128, 4096)
        for name, n in (("self_attn.q_norm", 128), ("self_attn.k_norm", 128), ("input_layernorm", 4096),
                        ("post_attention_layernorm", 4096)):
            g.add(p + name + ".weight", "BF16", n)
    g.add("model.embed_tokens.weight", "BF16", 151936, 4096)
    g.add("lm_head.weight", "BF16", 151936, 4096)
    return g


def gpt_oss_120b():
    g = Giant({"model_type": "gpt_oss", "num_hidden_layers": 36,
               "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})
    for i in range(36):
        g.shard()
        p = f"model.layers.{i}."
        for name, n in ("gate_up_proj", 5760), ("down_proj", 2880):
            g.add(f"{p}mlp.experts.{name}_blocks", "U8", 128, n, 90, 16)
            g.add(f"{p}mlp.experts.{name}_scales", "U8", 128, n, 90)
            g.quantized["mxfp4"] += 1
            g.add(f"{p}mlp.experts.{name}_bias", "BF16", 128, n)
        g.add(p + "mlp.router.weight", "BF16", 128, 2880)
        g.add(p + "mlp.router.bias", "BF16", 128)
        for name, n, k in (("q", 4096, 2880), ("k", 512, 2880), ("v", 512, 2880), ("o", 2880, 4096)):
            g.add(f"{p}self_attn.{name}_proj.weight", "BF16", n, k)
            g.add(f"{p}self_attn.{name}_proj.bias", "BF16", n)
        g.add(p + "self_attn.sinks", "BF16", 64)
    for name in "model.embed_tokens", "lm_head":
        g.add(name + ".weight", "BF16", 201088, 2880)
    return g


GIANTS = {f.__name__: f for f in
          (deepseek_v3, kimi_k2, deepseek_v4_flash, deepseek_v41_flash, qwen3_235b_fp8, gpt_oss_120b)}
