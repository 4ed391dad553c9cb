"""Checks of what the oracle makes of activations that are quantized already."""

import json
from fractions import Fraction

import numpy as np
import pytest

import check_corpus
import numerics as nm


def test_inside_x_is_a_power_of_two_in_range():
    scales = {2.0 ** -91: True, 2.0 ** 119: True, 1.0: True, 2.0 ** -92: False, 2.0 ** 120: False,
              1.5: False, 0.0: False, -1.0: False, 2.0 ** -127: False, np.inf: False,
              np.nan: False}
    assert nm.inside_x(np.array(list(scales), np.float32)).tolist() == list(scales.values())


def test_round_to_bf16_is_the_nearest_of_all():
    rng = np.random.default_rng(1)
    values = rng.uniform(1, 2, 400) * 2.0 ** rng.integers(-140, 127, 400)
    ties = 1 + (2 * rng.integers(0, 128, 100) + 1) / 256  # between two bf16
    values = np.concatenate([values, ties, ties + 2.0 ** -40, ties - 2.0 ** -40])
    every = [Fraction(float(v)) for v in nm.bf16_to_f32(np.arange(0x7F80, dtype=np.uint16))]
    grid = np.array([float(v) for v in every])
    for value, got in zip(values, nm.round_to_bf16(values)):
        at = int(np.searchsorted(grid, value))
        exact = Fraction(float(value))
        below, above = exact - every[at - 1], every[at] - exact
        nearest = at if above < below or (above == below and at % 2 == 0) else at - 1
        assert got == nearest, value
    assert nm.round_to_bf16([-0.0, np.nan, 1e39, -1e39]).tolist() == [0x8000, 0x7FC0, 0x7F80, 0xFF80]


def test_each_scale_is_in_x_or_left_for_the_sum():
    codes = np.full((1, 96), 0x38, np.uint8)
    x, left = nm.split_codes(codes, np.array([[0.25, 0.3, -2.0]], np.float32), 32)
    assert nm.bf16_to_f32(x)[0, ::32].tolist() == [0.25, 1.0, 1.0]
    assert left.tolist() == [[1.0, np.float32(0.3), -2.0]]


@pytest.mark.parametrize("element", ("e4m3fn", "e2m1"))
def test_scales_of_x_by_loops(element):
    """One block a lane: y is the tree over f32(d * f32(scale_x * scale_w))."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 0x7F if element == "e4m3fn" else 16, (3, 64)).astype(np.uint8)
    weight = nm.Weight(element, codes, rng.uniform(0.5, 2, (3, 2)).astype(np.float32))
    x_codes = rng.integers(0, 0x7F, (2, 64)).astype(np.uint8)
    x_scales = np.array([[0.3, 2.0], [-1.7, 1e-40]], np.float32)
    x, left = nm.split_codes(x_codes, x_scales, 32)
    y = nm.gemm(x, weight, x_scales=left)
    values = nm.bf16_to_f32(x).astype(np.float64)
    decoded = nm._DECODE[element](codes).astype(np.float64)
    for row in range(2):
        for column in range(3):
            total = np.float32(0)
            for b in range(2):
                d = np.float32(0)
                for lo, hi in nm.PAIRS[element]:
                    for i in (hi, lo):
                        product = decoded[column, 32 * b + i] * values[row, 32 * b + i]
                        exact = Fraction(product) + Fraction(float(d))
                        d = np.float32(float(exact))  # few bits: exact in f64
                        assert Fraction(float(exact)) == exact
                scale = np.float32(left[row, b] * weight.scales[column, b])
                total = np.float32(total + np.float32(float(d) * float(scale)))
            assert nm.f32_bits(total) == nm.f32_bits(y[row, column]), (row, column)


def make_corpus(seed, element, x_scale, block_k, m=3, n=7, k=330):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 0x7F if element == "e4m3fn" else 0x100, (n, k if element == "e4m3fn"
                                                                     else k // 2)).astype(np.uint8)
    shape = (m, -(-k // block_k))
    x_codes = rng.integers(0, 0x7F, (m, k)).astype(np.uint8)
    if x_scale == "u8":
        x_scales = rng.choice([0, 35, 36, 120, 127], shape).astype(np.uint8)
    else:
        x_scales = rng.choice([0.3, 1.0, -2.0, 1e-40], shape).astype(np.float32)
    scales = rng.integers(120, 130, (n, -(-k // 32))).astype(np.uint8)
    arrays = [("x_codes", "u8", x_codes), ("x_scales", x_scale, x_scales), ("codes", "u8", codes),
              ("scales", "u8", scales)]
    header = {"format": "test", "contract": 1, "element": element, "block_n": 1, "block_k": 32,
              "scale": "e8m0", "quantize": 224 if element == "e2m1" else 0, "x_block_k": block_k}
    y = check_corpus.recompute(header, {name: array for name, _, array in arrays})
    arrays.append(("y", "u32", y))
    header["arrays"] = [{"name": name, "dtype": dtype, "shape": list(array.shape)}
                        for name, dtype, array in arrays]
    raw = b"".join(array.astype(check_corpus.DTYPES[dtype]).tobytes() for _, dtype, array in arrays)
    return header, raw


def parse(header, raw):
    return check_corpus.parse(json.dumps(header).encode() + b"\n" + raw)


@pytest.mark.parametrize("element", ("e4m3fn", "e2m1"))
@pytest.mark.parametrize("x_scale, block_k", (("u8", 32), ("f32", 128)))
def test_a_corpus_of_codes_is_understood(element, x_scale, block_k):
    header, raw = make_corpus(3, element, x_scale, block_k)
    parsed, arrays = parse(header, raw)
    assert np.array_equal(check_corpus.recompute(parsed, arrays), arrays["y"])


def test_a_corpus_of_codes_that_does_not_fit_is_refused():
    header, raw = make_corpus(4, "e4m3fn", "f32", 128)
    for change in ({"x_block_k": 64}, {"x_block_k": 32}, {"quantize": 224}, {"element": "bf16"}):
        with pytest.raises(check_corpus.CorpusError):
            parse({**header, **change}, raw)
