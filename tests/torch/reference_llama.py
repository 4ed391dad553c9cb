"""The Llama forward in plain torch, with the arithmetic of the runtime: an independent oracle. Where
the checkpoint has `q_norm` and `k_norm`, it is that of Qwen3.

Checkpoints: bf16; fp8 in blocks (`weight` F8_E4M3 with `weight_scale_inv` or `weight_scale`); mxfp4
(`weight_packed` U8 with `weight_scale` U8), mixed as the file has them. Weights are dequantized
exactly. In front of every quantized linear, activations are quantized 1x32 with a power-of-two
scale and limit 224. Embedding and head are never quantized.

bf16 roundings are where LlamaForCausalLM and Qwen3ForCausalLM have them when it runs in bf16, with two differences:
scores, probabilities and the softmax stay f32, and the logits are not rounded. All tensors between
two roundings hold f32; all sums are done in f64 and rounded to f32, so that the order of a sum,
which torch does not define, shows only where an f64 sum lies next to a rounding boundary.
"""

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open

ACTIVATION_BLOCK, ACTIVATION_LIMIT, ACTIVATION_FLOOR = 32, 224.0, 1e-4
ACTIVATION_MAX = ACTIVATION_LIMIT * 2.0**119  # above it no scale is left that a kernel can hold
MX_BLOCK = 32
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E8M0 = torch.tensor([math.ldexp(1.0, b - 127) for b in range(255)] + [math.nan])


def bf16(x):
    """f32 -> the nearest bf16 value, as f32."""
    return x.to(torch.bfloat16).float()


def identity(x):
    return x


# ----------------------------------------------------------------------
# quantized weights and activations


def decode_scales(scales):
    """A scale grid of any dtype -> f32."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return E8M0[scales.view(torch.uint8).long()]
    return scales.float()


def dequantize_fp8(codes, scales, block_n, block_k):
    """codes F8_E4M3 [n, k], scales [ceil(n/block_n), ceil(k/block_k)] -> f32 [n, k]."""
    n, k = codes.shape
    expected = (-(-n // block_n), -(-k // block_k))
    if tuple(scales.shape) != expected:
        raise ValueError(f"scale grid: expected {expected}, found {tuple(scales.shape)}")
    rows = torch.arange(n) // block_n
    columns = torch.arange(k) // block_k
    return codes.float() * decode_scales(scales)[rows][:, columns]


def dequantize_mxfp4(packed, scales):
    """packed U8 [n, k/2], low nibble = even k, scales [n, ceil(k/32)] -> f32 [n, k]."""
    n, k = packed.shape[0], 2 * packed.shape[1]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(n, k)
    columns = torch.arange(k) // MX_BLOCK
    return E2M1[codes.long()] * decode_scales(scales)[:, columns]


def fake_quantize(x):
    """x f32 [..., k] -> decode(code) * scale, per row and block of 32 columns."""
    k = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -k % ACTIVATION_BLOCK))
    blocks = padded.unflatten(-1, (-1, ACTIVATION_BLOCK))
    amax = blocks.abs().amax(dim=-1, keepdim=True)  # amax keeps a NaN
    usable = amax <= ACTIVATION_MAX  # false for a NaN
    a = torch.where(usable, amax, 1.0).clamp(min=ACTIVATION_FLOOR)
    # 224 = 0.875 * 2^8 and a = mantissa * 2^exponent with mantissa in [0.5, 1):
    # a <= 224 * 2^j holds from j = exponent - 8 on, or from one more when mantissa > 0.875.
    mantissa, exponent = torch.frexp(a)
    exponent = exponent - 8 + (mantissa > 0.875).int()
    scale = E8M0[(exponent + 127).long()]
    values = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
    values = torch.where(usable, values, math.nan)
    return values.flatten(-2)[..., :k]


# ----------------------------------------------------------------------
# the model


class Linear:
    """y = x · wᵀ, w f32 [n, k] dequantized; x is quantized first where w was."""

    def __init__(self, w, quantized, sums):
        self.w, self.quantized = w.to(sums), quantized

    def __call__(self, x):
        if self.quantized:
            x = fake_quantize(x)
        return (x.to(self.w.dtype) @ self.w.T).float()


class Checkpoint:
    """The tensors of a folder with one model.safetensors."""

    def __init__(self, folder, sums=torch.float64, quantize=True):
        folder, self.sums, self.quantize = Path(folder), sums, quantize
        self.config = json.loads((folder / "config.json").read_text())
        self.file = safe_open(folder / "model.safetensors", framework="pt")
        self.names = set(self.file.keys())
        quantization = self.config.get("quantization_config", {})
        self.block = quantization.get("weight_block_size", [32, 32])

    def tensor(self, name):
        return self.file.get_tensor(name)

    def linear(self, stem):
        if f"{stem}.weight_packed" in self.names:
            packed = self.tensor(f"{stem}.weight_packed")
            return Linear(
                dequantize_mxfp4(packed, self.tensor(f"{stem}.weight_scale")),
                self.quantize,
                self.sums,
            )
        w = self.tensor(f"{stem}.weight")
        if w.dtype != torch.float8_e4m3fn:
            return Linear(w.float(), False, self.sums)
        for suffix in ("weight_scale_inv", "weight_scale"):
            if f"{stem}.{suffix}" in self.names:
                scales = self.tensor(f"{stem}.{suffix}")
                w = dequantize_fp8(w, scales, *self.block)
                return Linear(w, self.quantize, self.sums)
        raise ValueError(f"{stem}.weight has codes and no scales")


class Layer:
    """The weights of one decoder layer."""

    def __init__(self, checkpoint, i):
        stem = f"model.layers.{i}"
        self.input_norm = checkpoint.tensor(f"{stem}.input_layernorm.weight").float()
        self.post_norm = checkpoint.tensor(f"{stem}.post_attention_layernorm.weight").float()
        self.q_norm, self.k_norm = (
            checkpoint.tensor(f"{stem}.self_attn.{x}_norm.weight").float()
            if f"{stem}.self_attn.{x}_norm.weight" in checkpoint.names
            else None
            for x in "qk"
        )
        self.q, self.k, self.v, self.o = (
            checkpoint.linear(f"{stem}.self_attn.{x}_proj") for x in "qkvo"
        )
        self.gate, self.up, self.down = (
            checkpoint.linear(f"{stem}.mlp.{x}_proj") for x in ("gate", "up", "down")
        )


class Cache:
    """Keys (turned) and values of each layer, [tokens, kv_heads, head_dim]."""

    def __init__(self, num_layers):
        self.layers = [None] * num_layers
        self.length = 0

    def append(self, i, k, v):
        if self.layers[i] is not None:
            k, v = torch.cat((self.layers[i][0], k)), torch.cat((self.layers[i][1], v))
        self.layers[i] = (k, v)
        return k, v


def rope_theta(config):
    """The base of RoPE: at the top of a config, or where transformers 5 writes it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"RoPE of type {kind} is not known")
    return rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"]


class Llama:
    """rounded=False drops every bf16 rounding, to compare with a model that runs in f32;
    sums=torch.float32 takes the sums as torch takes them, to see what the order of a sum does;
    quantize=False leaves activations as they are in front of quantized weights."""

    def __init__(self, folder, rounded=True, sums=torch.float64, quantize=True):
        checkpoint = Checkpoint(folder, sums, quantize)
        c = checkpoint.config
        self.sums = sums
        self.round = bf16 if rounded else identity
        self.num_heads, self.num_kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.num_heads
        self.eps = c["rms_norm_eps"]
        self.embedding = checkpoint.tensor("model.embed_tokens.weight")
        self.norm = checkpoint.tensor("model.norm.weight").float()
        head = self.embedding if c["tie_word_embeddings"] else checkpoint.tensor("lm_head.weight")
        self.head = Linear(head.float(), False, sums)
        self.layers = [Layer(checkpoint, i) for i in range(c["num_hidden_layers"])]
        half = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        self.inverse_frequency = 1.0 / rope_theta(c) ** half  # f32 [head_dim / 2]

    def rms_norm(self, x, weight):
        mean_square = x.to(self.sums).pow(2).mean(-1, keepdim=True).float()
        normed = x * torch.rsqrt(mean_square + self.eps)
        return self.round(self.round(normed) * weight)

    def heads(self, x, norm):
        """x [tokens, heads * head_dim] -> [tokens, heads, head_dim], each head normed if there is a
        norm."""
        x = self.round(x).unflatten(-1, (-1, self.head_dim))
        return x if norm is None else self.rms_norm(x, norm)

    def rope_tables(self, start, count):
        positions = torch.arange(start, start + count).float()
        angle = positions[:, None] * self.inverse_frequency
        angle = torch.cat((angle, angle), dim=-1)[:, None, :]  # [tokens, 1, head_dim]
        return self.round(angle.cos()), self.round(angle.sin())

    def rope(self, x, cos, sin):
        """x [tokens, heads, head_dim]; halves (a, b) -> (a cos - b sin, b cos + a sin)."""
        a, b = x.chunk(2, dim=-1)
        return self.round(self.round(x * cos) + self.round(torch.cat((-b, a), dim=-1) * sin))

    def attention(self, q, k, v, start):
        """q [m, heads, head_dim], k and v [tokens, kv_heads, head_dim] -> [m, heads * head_dim]."""
        m, tokens = q.shape[0], k.shape[0]
        group = self.num_heads // self.num_kv_heads
        hidden = torch.arange(tokens)[None, :] > torch.arange(start, start + m)[:, None]
        q, k, v = (x.to(self.sums) for x in (q, k, v))
        outputs = []
        for head in range(self.num_heads):
            scores = (q[:, head] @ k[:, head // group].T).float() * (1.0 / math.sqrt(self.head_dim))
            scores = scores.masked_fill(hidden, -math.inf).to(self.sums)
            p = torch.softmax(scores, dim=-1).float().to(self.sums)
            outputs.append((p @ v[:, head // group]).float())
        return self.round(torch.stack(outputs, dim=1).flatten(1))

    def mlp(self, layer, h):
        gate = self.round(torch.nn.functional.silu(self.round(layer.gate(h))))
        return self.round(layer.down(self.round(gate * self.round(layer.up(h)))))

    def decoder_layer(self, i, x, cos, sin, cache):
        layer, m = self.layers[i], x.shape[0]
        h = self.rms_norm(x, layer.input_norm)
        q = self.heads(layer.q(h), layer.q_norm)
        k = self.heads(layer.k(h), layer.k_norm)
        v = self.heads(layer.v(h), None)
        k, v = cache.append(i, self.rope(k, cos, sin), v)
        h = self.attention(self.rope(q, cos, sin), k, v, cache.length)
        x = self.round(x + self.round(layer.o(h)))
        h = self.rms_norm(x, layer.post_norm)
        return self.round(x + self.mlp(layer, h))

    def forward(self, ids, cache=None):
        """Token ids, after those in the cache -> f32 logits [len(ids), vocabulary]."""
        cache = cache or Cache(len(self.layers))
        x = self.embedding[torch.as_tensor(ids)].float()
        cos, sin = self.rope_tables(cache.length, len(ids))
        for i in range(len(self.layers)):
            x = self.decoder_layer(i, x, cos, sin, cache)
        cache.length += len(ids)
        return self.head(self.rms_norm(x, self.norm))


def load(folder, rounded=True, sums=torch.float64, quantize=True):
    return Llama(folder, rounded, sums, quantize)


def greedy(model, ids, n):
    """The n most likely tokens, one after the other -> (ids, [(best logit, second best logit)]).

    It does not stop at an end token; of equal logits the lower id wins.
    """
    cache = Cache(len(model.layers))
    logits = model.forward(ids, cache)[-1]
    tokens, best_two = [], []
    for step in range(n):
        best = logits.max()
        token = int((logits == best).nonzero()[0])
        second = torch.cat((logits[:token], logits[token + 1 :])).max()
        tokens.append(token)
        best_two.append((float(best), float(second)))
        if step + 1 < n:
            logits = model.forward([token], cache)[-1]
    return tokens, best_two


def negative_log_likelihoods(logits, targets):
    """f32 logits [m, vocabulary] -> f64 [m]."""
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return -log_p.gather(1, torch.as_tensor(targets)[:, None]).squeeze(1)


def perplexity(model, ids, context=1024, tokens=None):
    """exp of the mean negative log likelihood of ids[1 : tokens + 1], no BOS.

    Windows of `context` predictions; each starts, with an empty cache, at the last token of the one
    before, so that every token but the very first is scored once.
    """
    tokens = len(ids) - 1 if tokens is None else tokens
    if not 0 < tokens < len(ids):
        raise ValueError(f"{len(ids)} ids give {len(ids) - 1} predictions, {tokens} were asked for")
    losses = []
    for begin in range(0, tokens, context):
        end = min(begin + context, tokens)
        logits = model.forward(ids[begin:end])
        losses.append(negative_log_likelihoods(logits, ids[begin + 1 : end + 1]))
    return math.exp(torch.cat(losses).mean())
