"""One tiny checkpoint per family: the published names, data types and configuration, small shapes.

Widths are multiples of 32 where the release's are; heights are ragged where a release has such (576
rows in 128-row blocks).
"""

from tiny import Tiny

FAMILIES = {}


def family(build):
    FAMILIES[build.__name__] = build
    return build


def fp8_config(block=(128, 128), **more):
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": list(block), **more}


def deepseek_v3_layers(t, **keywords):
    """Names shared by DeepSeek-V3 and Kimi-K2."""
    for name, n, k in (("self_attn.q_a_proj", 192, 256), ("self_attn.q_b_proj", 256, 192),
                       ("self_attn.kv_a_proj_with_mqa", 576, 256), ("self_attn.o_proj", 256, 160)):
        t.fp8("model.layers.0." + name, n, k, (128, 128), **keywords)
    for i in range(2):
        for name, n, k in ("gate_proj", 160, 256), ("up_proj", 160, 256), ("down_proj", 256, 160):
            t.fp8(f"model.layers.0.mlp.experts.{i}.{name}", n, k, (128, 128), **keywords)
    t.bf16("model.layers.0.mlp.gate", 2, 256)
    t.plain("model.layers.0.mlp.gate.e_score_correction_bias", "F32", 2)
    t.plain("model.layers.0.input_layernorm.weight", "BF16", 256)
    t.bf16("model.embed_tokens", 64, 256)


@family
def deepseek_v3():
    t = Tiny({"model_type": "deepseek_v3", "quantization_config": fp8_config()})
    deepseek_v3_layers(t)
    return t


@family
def deepseek_v32():
    """ue8m0 scales shipped as F32; the indexer of V3.2."""
    t = Tiny({"model_type": "deepseek_v32", "quantization_config": fp8_config(scale_fmt="ue8m0")})
    deepseek_v3_layers(t)
    t.fp8("model.layers.0.self_attn.indexer.wq_b", 128, 192, (128, 128))
    t.bf16("model.layers.0.self_attn.indexer.weights_proj", 4, 256)
    return t


def deepseek_v4_layers(t, block, dtype):
    for name, n, k in ("wq_a", 96, 256), ("wkv", 64, 256), ("wo_a", 160, 128), ("wo_b", 256, 160):
        t.fp8("layers.0.attn." + name, n, k, block, dtype, ".scale")
    for name, n, k in ("w1", 96, 256), ("w2", 256, 96), ("w3", 96, 256):
        t.fp8("layers.0.ffn.shared_experts." + name, n, k, block, dtype, ".scale")
    t.bf16("embed", 64, 256)
    t.bf16("head", 64, 256)
    t.bf16("layers.0.ffn.gate", 2, 256)
    t.plain("layers.0.ffn.gate.bias", "F32", 2)
    t.plain("layers.0.ffn.gate.tid2eid", "I64", 64, 6)
    t.plain("layers.0.attn.attn_sink", "F32", 4)
    t.plain("layers.0.attn.q_norm.weight", "BF16", 96)
    t.plain("layers.0.hc_attn_scale", "F32", 3)
    t.plain("hc_head_scale", "F32", 1)


def deepseek_v4_experts(t, prefix="layers.0", container="I8"):
    for i in range(2):
        for name, n, k in ("w1", 96, 256), ("w2", 256, 96), ("w3", 96, 256):
            t.mxfp4(f"{prefix}.ffn.experts.{i}.{name}", n, k, container=container)


@family
def deepseek_v4_flash():
    t = Tiny({"model_type": "deepseek_v4", "expert_dtype": "fp4",
              "quantization_config": fp8_config(scale_fmt="ue8m0")})
    deepseek_v4_layers(t, (128, 128), "F8_E8M0")
    deepseek_v4_experts(t)
    deepseek_v4_experts(t, "mtp.0")
    return t


@family
def deepseek_v4_base():
    """fp8 experts with F32 scales."""
    t = Tiny({"model_type": "deepseek_v4", "expert_dtype": "fp8", "quantization_config": fp8_config()})
    deepseek_v4_layers(t, (128, 128), "F32")
    t.fp8("layers.0.ffn.experts.0.w1", 160, 256, (128, 128), "F32", ".scale")
    return t


@family
def deepseek_v4_fp8_repack():
    """A community re-pack: fp8 experts with e8m0 scales and no expert_dtype."""
    t = Tiny({"model_type": "deepseek_v4", "quantization_config": fp8_config(scale_fmt="ue8m0")})
    deepseek_v4_layers(t, (128, 128), "F8_E8M0")
    t.fp8("layers.0.ffn.experts.0.w1", 160, 256, (128, 128), "F8_E8M0", ".scale")
    return t


def v41_config():
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
             "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    return {"model_type": "deepseek_v41", "text_config": {"model_type": "deepseek_v41_text"},
            "vision_config": {}, "quantization_config": block}


@family
def deepseek_v41_flash():
    t = Tiny(v41_config())
    deepseek_v4_layers(t, (32, 32), "F8_E8M0")
    deepseek_v4_experts(t)
    t.fp8("layers.1.engram.wkv", 160, 96, (32, 32), "F8_E8M0", ".scale")
    t.fp8("layers.1.engram.embed", 70, 256, (1, 32), "F8_E8M0", ".scale", fmt="mxfp8")
    t.plain("layers.0.ffn.gate.bias_vl", "F32", 2)
    return t


@family
def deepseek_v41_resaved_by_torch():
    """Experts whose data type says F4."""
    t = Tiny(v41_config())
    deepseek_v4_experts(t, container="F4")
    return t


def qwen3(dtype):
    t = Tiny({"model_type": "qwen3", "tie_word_embeddings": True,
              "quantization_config": fp8_config(modules_to_not_convert=["lm_head"])})
    for name, n, k in ("q_proj", 256, 160), ("k_proj", 64, 160), ("v_proj", 64, 160), ("o_proj", 160, 256):
        t.fp8("model.layers.0.self_attn." + name, n, k, (128, 128), dtype)
    t.plain("model.layers.0.self_attn.q_norm.weight", "BF16", 32)
    t.bf16("model.embed_tokens", 64, 160)
    return t


@family
def qwen3_fp8():
    return qwen3("BF16")


@family
def qwen3_fp8_f16_scales():
    return qwen3("F16")


@family
def qwen3_moe_fp8():
    t = qwen3("BF16")
    t.fp8("model.layers.0.mlp.experts.7.gate_proj", 192, 160, (128, 128), "BF16")
    t.bf16("model.layers.0.mlp.gate", 8, 160)
    return t


@family
def kimi_k2_instruct():
    t = Tiny({"model_type": "kimi_k2", "quantization_config": fp8_config()})
    deepseek_v3_layers(t)
    return t


@family
def minimax_m2():
    t = Tiny({"model_type": "minimax_m2",
              "quantization_config": dict(fp8_config(), fmt="float8_e4m3fn")})
    t.fp8("model.layers.0.block_sparse_moe.experts.0.w1", 160, 256, (128, 128))
    t.bf16("model.layers.0.block_sparse_moe.gate", 2, 256)
    t.plain("model.layers.0.block_sparse_moe.e_score_correction_bias", "F32", 2)
    return t


@family
def glm_5_fp8():
    t = Tiny({"model_type": "glm_moe_dsa", "quantization_config": fp8_config()})
    t.fp8("model.layers.0.self_attn.o_proj", 200, 256, (128, 128))
    t.bf16("model.layers.0.self_attn.indexer.weights_proj", 4, 256)
    return t


@family
def mistral_fp8():
    block = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    t = Tiny({"model_type": "mistral3", "text_config": {}, "quantization_config": block})
    t.fp8_tensor("model.language_model.layers.0.mlp.up_proj", 96, 160, "BF16", ".weight_scale_inv", ())
    t.plain("model.language_model.layers.0.mlp.up_proj.activation_scale", "BF16")
    t.bf16("model.vision_tower.transformer.layers.0.attention.q_proj", 32, 32)
    return t


def groups(format_name, **groups_by_name):
    return {"quant_method": "compressed-tensors", "format": format_name, "config_groups": {
        name: {"targets": targets, "weights": dict(weights, type="float", symmetric=True)}
        for name, (targets, weights) in groups_by_name.items()}}


@family
def compressed_tensors_float():
    """Blocks, channels and one scale, by the name of the scheme instead of group_0."""
    t = Tiny({"quantization_config": groups(
        "float-quantized",
        FP8_BLOCK=(["re:.*self_attn.*"], {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}),
        channel=(["re:.*mlp.*"], {"num_bits": 8, "strategy": "channel"}),
        group_2=(["lm_head"], {"num_bits": 8, "strategy": "tensor"}))})
    t.fp8("model.layers.0.self_attn.q_proj", 200, 256, (128, 128), "BF16", ".weight_scale")
    t.fp8("model.layers.0.mlp.up_proj", 90, 96, (1, 96), "F32", ".weight_scale", fmt="fp8-channel")
    t.fp8_tensor("lm_head", 64, 96)
    t.plain("lm_head.input_scale", "F32", 1)
    return t


@family
def glm_4_fp8():
    """Per channel, dynamic per token."""
    t = Tiny({"model_type": "glm4_moe", "quantization_config": groups(
        "float-quantized", group_0=(["Linear"], {"num_bits": 8, "strategy": "channel"}))})
    t.fp8("model.layers.0.mlp.experts.0.gate_proj", 96, 288, (1, 288), "BF16", ".weight_scale", fmt="fp8-channel")
    t.bf16("model.layers.0.mlp.gate", 2, 288)
    return t


@family
def kimi_k3():
    t = Tiny({"model_type": "kimi_k3", "text_config": {"quantization_config": groups(
        "mxfp4-pack-quantized", group_0=(["re:.*experts.*"], {"num_bits": 4, "strategy": "group", "group_size": 32}))}})
    t.mxfp4("model.layers.1.mlp.experts.3.gate_proj", 96, 160, ".weight_packed", "U8", ".weight_scale", "U8")
    t.bf16("model.layers.1.self_attn.o_proj", 64, 160)
    return t


@family
def compressed_tensors_mxfp8():
    t = Tiny({"quantization_config": groups(
        "mxfp8-quantized", group_0=(["Linear"], {"num_bits": 8, "strategy": "group", "group_size": 32}))})
    t.fp8("model.layers.0.mlp.up_proj", 90, 160, (1, 32), "U8", ".weight_scale", fmt="mxfp8")
    return t


@family
def compressed_tensors_nvfp4():
    t = Tiny({"quantization_config": groups(
        "nvfp4-pack-quantized", group_0=(["Linear"], {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}))})
    t.nvfp4("model.layers.0.mlp.up_proj", 90, 80, ".weight_packed", ".weight_global_scale", divides=True)
    t.plain("model.layers.0.mlp.up_proj.input_global_scale", "F32", 1)
    return t


@family
def modelopt_nvfp4():
    t = Tiny({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}})
    t.side_files["hf_quant_config.json"] = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    t.nvfp4("model.layers.0.mlp.down_proj", 90, 80, ".weight", ".weight_scale_2", divides=False)
    t.plain("model.layers.0.mlp.down_proj.input_scale", "F32")
    t.bf16("lm_head", 64, 80)
    return t


@family
def modelopt_mxfp8():
    """Only the side file says what it is."""
    t = Tiny({"model_type": "llama"})
    t.side_files["hf_quant_config.json"] = {"producer": {"name": "modelopt"},
                                            "quantization": {"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}}
    t.fp8("model.layers.0.mlp.up_proj", 90, 160, (1, 32), "U8", ".weight_scale", fmt="mxfp8")
    return t


@family
def quark_mxfp4():
    """Layers of another kind are refused: how Quark writes them is not described well enough."""
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    t = Tiny({"quantization_config": {
        "quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"],
        "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_block"}}}}})
    t.mxfp4("model.layers.0.mlp.up_proj", 90, 160, ".weight", "U8", ".weight_scale", "U8")
    t.bf16("lm_head", 64, 160)
    t.fp8("model.layers.0.self_attn.q_proj", 64, 64, (32, 32), "F8_E8M0", ".weight_scale")
    del t.expected["model.layers.0.self_attn.q_proj"]
    t.problems["model.layers.0.self_attn.q_proj.weight"] = (
        'quant_method "quark", layer_quant_config "*self_attn*": dtype "fp8_e4m3" is not supported')
    return t


@family
def gpt_oss():
    t = Tiny({"model_type": "gpt_oss",
              "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})
    t.mxfp4_blocks("model.layers.0.mlp.experts.gate_up_proj", 3, 180, 96, gate_up=True)
    t.mxfp4_blocks("model.layers.0.mlp.experts.down_proj", 3, 96, 96)
    t.plain("model.layers.0.mlp.experts.gate_up_proj_bias", "BF16", 3, 180)
    t.plain("model.layers.0.mlp.experts.down_proj_bias", "BF16", 3, 96)
    t.plain("model.layers.0.self_attn.sinks", "BF16", 8)
    t.bf16("model.layers.0.mlp.router", 3, 96)
    return t


@family
def gpt_oss_original():
    """OpenAI's own names; its config.json says nothing about quantization."""
    t = Tiny({"num_hidden_layers": 1})
    t.mxfp4_blocks("block.0.mlp.mlp1_weight", 3, 180, 96, ".blocks", ".scales", gate_up=True)
    t.mxfp4_blocks("block.0.mlp.mlp2_weight", 3, 96, 96, ".blocks", ".scales")
    t.plain("block.0.mlp.mlp1_bias", "BF16", 3, 180)
    t.plain("block.0.attn.norm.scale", "BF16", 96)
    return t


@family
def deepgemm_packed():
    """e8m0 scales packed for DeepGEMM; the rows of one are padded."""
    t = Tiny({"quantization_config": fp8_config()})
    t.fp8_packed("a", 70, 512, 128)
    t.fp8_packed("b", 70, 300, 128)
    return t


@family
def mimo_v2():
    """Four shards of 200 rows were quantized apart and joined."""
    t = Tiny({"model_type": "mimo_v2", "quantization_config": fp8_config()})
    module = "model.layers.0.self_attn.qkv_proj"
    t.fp8(module, 200, 256, (128, 128), groups=4)
    for name, rows in (".weight", 800), (".weight_scale_inv", 8):
        dtype, shape, data = t.tensors[module + name]
        t.tensors[module + name] = (dtype, [rows, shape[2]], data)
    t.segments = "qkv_proj$=200"
    return t


@family
def mimo_v2_without_a_word():
    """The same, but nobody has said how the rows are cut: never stretched, refused with a hint."""
    t = mimo_v2()
    t.segments, t.expected = None, {}
    t.problems["model.layers.0.self_attn.qkv_proj.weight"] = (
        "for [800, 256] in blocks of 128 x 128: expected [7, 2], found [8, 2]; a grid that begins anew every 400 or 200 or 100 rows")
    return t


@family
def kimi_k2_thinking():
    """int4: refused by name."""
    config = groups("pack-quantized", group_0=(["Linear"], {"num_bits": 4, "strategy": "group", "group_size": 32}))
    config["config_groups"]["group_0"]["weights"]["type"] = "int"
    t = Tiny({"model_type": "kimi_k2", "quantization_config": config})
    module = "model.layers.1.mlp.experts.0.up_proj"
    t.plain(module + ".weight_packed", "I32", 64, 20)
    t.plain(module + ".weight_scale", "BF16", 64, 5)
    t.plain(module + ".weight_shape", "I64", 2)
    t.problems[module + ".weight_packed"] = 'group group_0 of config.json is not supported: type is "int"'
    return t


@family
def fnuz():
    """AMD's other e4m3."""
    t = Tiny({"quantization_config": fp8_config()})
    t.plain("a.weight", "F8_E4M3FNUZ", 32, 32)
    t.plain("a.weight_scale_inv", "F32", 1, 1)
    t.problems["a.weight"] = "data type F8_E4M3FNUZ is not known"
    return t
