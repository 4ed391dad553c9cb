"""reference_llama.py against transformers' Llama and Qwen3, and its quantized loaders by hand.

The reference is tested three ways, each sharp where the next is blunt: without bf16 roundings
against a model in f32 (is every operation there?), part by part in bf16 (is every rounding in its
place?), and as a whole in bf16.
"""

import math
import statistics
from fractions import Fraction

import pytest
import torch
from checkpoints import RAGGED, SMOLLM2, WHOLE, write_random_llama, write_random_qwen3
from quantize_reference import quantize_checkpoint
from reference_llama import (
    Cache,
    bf16,
    decode_scales,
    dequantize_fp8,
    dequantize_mxfp4,
    fake_quantize,
    greedy,
    load,
    negative_log_likelihoods,
    perplexity,
)
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

TEXT_IDS = 96


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=["ragged", "qwen3", "smollm2"])
def folder(request, tmp_path_factory):
    if request.param == "ragged":
        return write_random_llama(tmp_path_factory.mktemp("ragged"), RAGGED)
    if request.param == "qwen3":
        return write_random_qwen3(tmp_path_factory.mktemp("qwen3"))
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is missing: run tools/import_gguf.py")
    return SMOLLM2


@pytest.fixture(scope="module")
def reference(folder):
    return load(folder)


def some_ids(reference):
    """Random ids, none of them special in SmolLM2 (its first 17 are)."""
    vocabulary = reference.embedding.shape[0]
    generator = torch.Generator().manual_seed(7)
    return torch.randint(17, min(vocabulary, 5000), (TEXT_IDS,), generator=generator).tolist()


def vendor(folder, dtype, attention="eager"):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention
    )


def rms(x):
    return float(x.double().pow(2).mean().sqrt())


# ----------------------------------------------------------------------
# the bf16 model against transformers


def test_unrounded_logits_equal_an_f32_model(folder):
    """Error model as below with u = 2^-24, where a sum of k terms adds sqrt(k) roundings."""
    reference = load(folder, rounded=False)
    ids = some_ids(reference)
    expected = vendor(folder, torch.float32)(torch.tensor([ids])).logits[0]
    k = max(layer.down.w.shape[1] for layer in reference.layers)
    sigma = rms(expected) * math.sqrt(16 * len(reference.layers) * k) * 2.0**-24 / math.sqrt(3)
    difference = reference.forward(ids) - expected
    assert rms(difference) <= sigma
    assert float(difference.abs().max()) <= 12 * sigma


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rounded_logits_are_near_a_bf16_model(folder, reference, attention):
    """About 16 roundings lie on the way through a layer (8 in each half), of relative size u = 2^-9
    and u / sqrt(3) in the mean square; they add up as a random walk, and two models that round
    differently (here: scores, probabilities, logits, order of sums) differ by sqrt(2) of one walk:

        sigma = sqrt(2) * rms(logits) * sqrt(16 * layers) * u / sqrt(3)

    The root mean square may be 2 sigma, since layers also amplify what they are given; the largest
    may be 12 sigma, of millions of normal values the largest being at 5. Measured: rms 0.2 to 1.1,
    largest 1.2 to 6 sigma. Rows of q and k in the wrong order: rms 5 (SmolLM2) to 80 sigma.
    """
    ids = some_ids(reference)
    expected = vendor(folder, torch.bfloat16, attention)(torch.tensor([ids])).logits[0].float()
    sigma = rms(expected) * math.sqrt(2 * 16 * len(reference.layers)) * 2.0**-9 / math.sqrt(3)
    difference = reference.forward(ids) - expected
    assert rms(difference) <= 2 * sigma
    assert float(difference.abs().max()) <= 12 * sigma


def equal_fraction(a, b):
    return float((a.float() == b.float()).float().mean())


def test_roundings_of_each_part_are_in_their_place(folder, reference):
    """Given the same input, parts differ only where two f32 sums lie across a rounding boundary:
    less than 1 % of the elements (measured: 0.6 % after the three products of the MLP). Any one of
    the 19 roundings left out of the reference fails this test or the next (tried for each).
    """
    model = vendor(folder, torch.bfloat16)
    ids = some_ids(reference)
    hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    cos, sin = model.model.rotary_emb(hidden[0], torch.arange(len(ids))[None])
    our_cos, our_sin = reference.rope_tables(0, len(ids))
    assert torch.equal(cos[0].float(), our_cos[:, 0])
    assert torch.equal(sin[0].float(), our_sin[:, 0])

    for i in (0, len(reference.layers) - 1):
        theirs, ours, x = model.model.layers[i], reference.layers[i], hidden[i][0]
        h = theirs.input_layernorm(x)
        assert equal_fraction(h, reference.rms_norm(x.float(), ours.input_norm)) >= 0.99
        assert equal_fraction(theirs.mlp(h), reference.mlp(ours, h.float())) >= 0.99

        q, k = theirs.self_attn.q_proj(h), theirs.self_attn.k_proj(h)
        assert equal_fraction(q, bf16(ours.q(h.float()))) >= 0.99
        q = q.view(len(ids), reference.num_heads, -1)
        k = k.view(len(ids), reference.num_kv_heads, -1)
        if ours.q_norm is not None:
            normed = theirs.self_attn.q_norm(q), theirs.self_attn.k_norm(k)
            assert equal_fraction(normed[0], reference.heads(q.flatten(1).float(), ours.q_norm)) >= 0.99
            assert equal_fraction(normed[1], reference.heads(k.flatten(1).float(), ours.k_norm)) >= 0.99
            q, k = normed
        turned = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
        for x_in, x_out in zip((q, k), turned, strict=True):
            expected = x_out[0].transpose(0, 1).float()
            assert torch.equal(expected, reference.rope(x_in.float(), our_cos, our_sin))


def f32_attention(module, q, k, v, attention_mask, **kwargs):
    """What the reference does between q, k, v and the output, in the words of transformers."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q.float(), k, v, is_causal=True)
    return y.to(q.dtype).transpose(1, 2), None


def test_whole_layers_round_as_transformers_does(folder, reference):
    """With attention in f32, a layer differs from that of transformers as its parts do: few
    elements cross a boundary, but each moves some of the outputs. Measured: equal elements 0.90 to
    1, in the median over the layers 0.993.
    """
    AttentionInterface.register("f32_attention", f32_attention)
    model = vendor(folder, torch.bfloat16, "f32_attention")
    ids = some_ids(reference)
    hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    cos, sin = reference.rope_tables(0, len(ids))
    last = len(reference.layers) - 1
    equal = []
    for i in range(last + 1):
        y = reference.decoder_layer(i, hidden[i][0].float(), cos, sin, Cache(last + 1))
        if i == last:
            y = reference.rms_norm(y, reference.norm)
        equal.append(equal_fraction(hidden[i + 1][0], y))
    assert min(equal) >= 0.8
    assert statistics.median(equal) >= 0.98
    logits = reference.head(hidden[-1][0].float())
    assert equal_fraction(bf16(logits), model.lm_head(hidden[-1][0])) >= 0.99


def test_attention_is_f32_between_bf16_inputs_and_output(reference):
    heads, kv_heads, d = reference.num_heads, reference.num_kv_heads, reference.head_dim
    torch.manual_seed(3)
    q, k, v = (bf16(torch.randn(40, h, d)) for h in (heads, kv_heads, kv_heads))
    group = heads // kv_heads
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).double(),
        k.repeat_interleave(group, 1).transpose(0, 1).double(),
        v.repeat_interleave(group, 1).transpose(0, 1).double(),
        is_causal=True,
    )
    expected = bf16(expected.float().transpose(0, 1).flatten(1))
    assert equal_fraction(expected, reference.attention(q, k, v, 0)) >= 0.99


# ----------------------------------------------------------------------
# cache, greedy, perplexity


def test_cached_steps_equal_one_forward(reference):
    """Sums in f64 hide the order that torch chooses by shape: only the last f32 bit may differ."""
    ids = some_ids(reference)[:24]
    cache = Cache(len(reference.layers))
    parts = [reference.forward(ids[:10], cache), reference.forward(ids[10:11], cache)]
    parts.append(reference.forward(ids[11:], cache))
    torch.testing.assert_close(torch.cat(parts), reference.forward(ids), rtol=2e-7, atol=1e-6)


class Canned:
    """A stand-in for a model: logits by position, a note of what was asked."""

    layers = ()

    def __init__(self, vocabulary=5):
        self.calls, self.vocabulary = [], vocabulary

    def forward(self, ids, cache=None):
        self.calls.append(list(ids))
        return torch.stack([torch.arange(self.vocabulary) * 0.5 + i for i in ids])


def test_perplexity_scores_every_token_but_the_first_once():
    ids = [0, 1, 2, 3, 4, 3, 2, 1, 0, 1]
    model = Canned()
    found = perplexity(model, ids, context=3, tokens=8)
    assert model.calls == [[0, 1, 2], [3, 4, 3], [2, 1]]
    z = sum(math.exp(0.5 * i) for i in range(5))
    losses = [math.log(z) - 0.5 * i for i in ids[1:9]]
    assert found == pytest.approx(math.exp(sum(losses) / 8), rel=1e-7)
    with pytest.raises(ValueError):
        perplexity(model, ids, context=3, tokens=10)


def test_negative_log_likelihoods_do_not_overflow():
    logits = torch.tensor([[1e30, 0.0], [0.0, 0.0]])
    assert negative_log_likelihoods(logits, [0, 1]).tolist() == [0.0, pytest.approx(math.log(2))]


def test_greedy_takes_the_lower_id_of_equal_logits():
    class Ties(Canned):
        def forward(self, ids, cache=None):
            return torch.tensor([[1.0, 3.0, 3.0, 2.0]])

    assert greedy(Ties(), [0], 2) == ([1, 1], [(3.0, 3.0), (3.0, 3.0)])


# ----------------------------------------------------------------------
# quantized activations


def one_row(*values):
    return fake_quantize(torch.tensor([values], dtype=torch.float32))[0].tolist()


def test_activations_hand_cases():
    # amax 224: scale 1. Steps are 2 in [16, 32): 17 and 19 are ties and go to the even codes.
    assert one_row(224.0, 17.0, 19.0, -17.0, 18.0, 16.9) == [224.0, 16.0, 20.0, -16.0, 18.0, 16.0]
    # Subnormal codes step by 2^-9: 2^-10 is a tie with 0, 3 * 2^-10 one between 1 and 2 steps.
    assert one_row(224.0, 2.0**-10, 3 * 2.0**-10) == [224.0, 0.0, 2.0**-8]
    # amax 225: scale 2. 225 / 2 = 112.5 lies between 112 and 120.
    assert one_row(225.0, 34.0, 38.0) == [224.0, 32.0, 40.0]
    # amax 1: scale 2^-7, since 224 * 2^-8 < 1. 0.333984375 * 128 = 42.75 -> 44.
    assert one_row(1.0, 0.333984375) == [1.0, 0.34375]
    # The floor 1e-4 gives scale 2^-21, whose smallest code is 2^-30.
    assert one_row(0.0, -0.0) == [0.0, 0.0]
    assert one_row(2.0**-30, 2.0**-31, 1.5 * 2.0**-31) == [2.0**-30, 0.0, 2.0**-30]
    # The largest amax there is a scale for.
    assert one_row(224 * 2.0**119, 2.0**120) == [224 * 2.0**119, 2.0**120]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**127])
def test_a_bad_block_is_nan_and_touches_nothing_else(bad):
    x = torch.ones(3, 80)
    x[1, 40] = bad
    y = fake_quantize(x)
    assert y[1, 32:64].isnan().all()
    y[1, 32:64] = 1
    assert torch.equal(y, torch.ones(3, 80))


def test_the_last_block_may_be_short():
    x = torch.full((1, 40), 224.0)
    x[0, 32:] = torch.tensor([2.0**-20] * 8)  # its own scale, else it would vanish
    assert torch.equal(fake_quantize(x), x)


def test_quantizing_twice_changes_no_value():
    torch.manual_seed(5)
    x = bf16(torch.randn(64, 100) * torch.exp2(torch.randint(-30, 30, (64, 1)).float()))
    once = fake_quantize(x)
    assert torch.equal(bf16(once), once)
    assert torch.equal(fake_quantize(once), once)


def nearest_e4m3(x, values):
    """The nearest of the values (index = code), ties to the even code; x a Fraction >= 0."""
    return min(range(len(values)), key=lambda c: (abs(values[c] - x), c % 2))


def test_activations_against_fractions():
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values = [Fraction(v) for v in codes.tolist()]
    torch.manual_seed(6)
    x = bf16(torch.randn(12, 32) * torch.exp2(torch.randint(-20, 20, (12, 32)).float()))
    for row, found in zip(x.tolist(), fake_quantize(x).tolist(), strict=True):
        amax = max(max(abs(Fraction(v)) for v in row), Fraction(torch.tensor(1e-4).item()))
        scale = Fraction(1, 2**60)
        while amax > 224 * scale:
            scale *= 2
        for v, y in zip(row, found, strict=True):
            expected = values[nearest_e4m3(abs(Fraction(v)) / scale, values)] * scale
            assert abs(Fraction(y)) == expected


# ----------------------------------------------------------------------
# quantized weights


def test_scales_decode_from_every_dtype():
    e8m0 = torch.tensor([[0, 1, 127, 254, 255]], dtype=torch.uint8)
    expected = [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    for scales in (e8m0, e8m0.view(torch.float8_e8m0fnu)):
        assert decode_scales(scales)[0, :4].tolist() == expected
        assert decode_scales(scales)[0, 4].isnan()
    assert decode_scales(torch.tensor([0.75], dtype=torch.bfloat16)).tolist() == [0.75]


def test_fp8_blocks_hold_their_own_scale():
    codes = torch.full((40, 70), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)  # 1.0
    scales = torch.tensor([[127, 128, 129], [126, 125, 124]], dtype=torch.uint8)
    w = dequantize_fp8(codes, scales, 32, 32)
    assert w[0, [0, 31, 32, 63, 64, 69]].tolist() == [1, 1, 2, 2, 4, 4]
    assert w[39, [0, 31, 32, 63, 64, 69]].tolist() == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert w[31, 0] == 1 and w[32, 0] == 0.5
    with pytest.raises(ValueError):
        dequantize_fp8(codes, scales[:, :2], 32, 32)


def test_mxfp4_even_k_is_the_low_nibble():
    packed = torch.zeros(1, 20, dtype=torch.uint8)
    packed[0, 0] = 0x21  # k = 0: code 1, k = 1: code 2
    packed[0, 16] = 0xF7  # k = 32: code 7, k = 33: code 15
    w = dequantize_mxfp4(packed, torch.tensor([[128, 126]], dtype=torch.uint8))
    assert w[0, [0, 1, 2, 32, 33]].tolist() == [1.0, 2.0, 0.0, 3.0, -3.0]


@pytest.mark.parametrize("scheme", ["fp8_32x32", "mxfp4_mix"])
def test_quantized_checkpoints_load_and_stay_near(scheme, tmp_path):
    """Both round each weight to within half a step: e4m3 2^-4, e2m1 at most 2^-2 of the value
    (above the subnormals). Random errors of that size in each of 2 halves of 3 layers, and as much
    again from activations, stay below the logits themselves."""
    source = write_random_llama(tmp_path / "bf16", RAGGED)
    quantize_checkpoint(source, tmp_path / scheme, scheme)
    before, after = load(source), load(tmp_path / scheme)
    layer = after.layers[0]
    assert all(linear.quantized for linear in (layer.q, layer.o, layer.gate, layer.down))
    assert not after.head.quantized
    step = {"fp8_32x32": 2.0**-4, "mxfp4_mix": 2.0**-2}[scheme]
    w, w_before = layer.gate.w, before.layers[0].gate.w
    assert 0 < rms(w - w_before) < step * rms(w_before)
    ids = some_ids(before)
    assert rms(after.forward(ids) - before.forward(ids)) < rms(before.forward(ids))


def test_transformers_reads_the_fp8_checkpoint_alike(tmp_path):
    """Transformers widens to bf16, which is exact, and is right about whole blocks only."""
    source = write_random_llama(tmp_path / "bf16", WHOLE)
    quantize_checkpoint(source, tmp_path / "fp8", "fp8_32x32")
    theirs = vendor(tmp_path / "fp8", torch.bfloat16).model.layers[1]
    ours = load(tmp_path / "fp8").layers[1]
    assert torch.equal(theirs.self_attn.k_proj.weight.double(), ours.k.w)
    assert torch.equal(theirs.mlp.down_proj.weight.double(), ours.down.w)
