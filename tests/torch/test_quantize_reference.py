"""quantize_reference.py against exact arithmetic and hand cases."""

import math
from fractions import Fraction

import pytest
import torch
from quantize_reference import (
    E2M1_VALUES,
    encode_e2m1,
    encode_e4m3fn,
    power_of_two_exponent,
    quantize_e4m3fn,
    quantize_e4m3fn_f32_scales,
    quantize_mxfp4,
)

E4M3_VALUES = [m * 2.0**-9 for m in range(8)]
E4M3_VALUES += [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]  # 0x7F: NaN


def around_midpoints(values):
    """Each value, each midpoint, and the f32 neighbours of both; beyond the largest as well."""
    points = list(values) + [(a + b) / 2 for a, b in zip(values, values[1:], strict=False)]
    x = torch.tensor([*points, values[-1] * 1.01, values[-1] * 2, 3e38])
    up = torch.nextafter(x, torch.tensor(math.inf))
    down = torch.nextafter(x, torch.tensor(-1.0)).clamp(min=0)
    return torch.cat((x, up[up.isfinite()], down))


def nearest(x, values):
    """Index of the nearest value, ties to the even code."""
    x = Fraction(x)
    return min(range(len(values)), key=lambda c: (abs(Fraction(values[c]) - x), c % 2))


@pytest.mark.parametrize(
    ("encode", "values", "sign"),
    [(encode_e4m3fn, E4M3_VALUES, 0x80), (encode_e2m1, E2M1_VALUES, 8)],
)
def test_encode_is_nearest_even_and_saturates(encode, values, sign):
    x = around_midpoints(values)
    expected = [nearest(v, values) for v in x.tolist()]
    assert encode(x).tolist() == expected
    assert encode(-x).tolist() == [code | sign for code in expected]


def test_encode_special_values():
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    assert encode_e4m3fn(x).tolist() == [0x7F, 0x7E, 0xFE, 0x80]
    assert encode_e2m1(torch.tensor([-0.0, math.inf, -math.inf])).tolist() == [8, 7, 15]


@pytest.mark.parametrize("limit", [448.0, 6.0])
def test_scale_is_the_smallest_power_of_two_that_does_not_saturate(limit):
    exact = torch.tensor([limit * 2.0**j for j in range(-120, 118)])
    above = torch.nextafter(exact, torch.tensor(math.inf))
    assert power_of_two_exponent(exact, limit).tolist() == list(range(-120, 118))
    assert power_of_two_exponent(above, limit).tolist() == list(range(-119, 119))


def test_e4m3fn_blocks_by_hand():
    w = torch.zeros(33, 65)
    w[0, 0], w[0, 31] = 448.0, -17.0  # scale 1; -17 is a tie between -16 and -18
    w[0, 32], w[31, 63] = 449.0, 1.0  # scale 2
    w[32, 64] = -(2.0**-23)  # the floor 1e-4 gives 2^-22: the code is 0.5
    codes, scales = quantize_e4m3fn(w, 32, 32)
    assert scales.tolist() == [[127, 128, 105], [105, 105, 105]]
    assert codes[0, [0, 31, 32]].tolist() == [0x7E, 0xD8, 0x76]
    assert codes[31, 63] == 0x30 and codes[32, 64] == 0xB0
    assert codes[5, 5] == 0


def test_f32_scales_by_hand():
    w = torch.tensor([[896.0, 448.0, -2.0]])
    codes, scales = quantize_e4m3fn_f32_scales(w, 128, 128)
    assert scales.tolist() == [[2.0]]
    assert codes.tolist() == [[0x7E, 0x76, 0xB8]]


def test_mxfp4_by_hand():
    w = torch.zeros(2, 34)
    w[0, 0], w[0, 1], w[0, 2], w[0, 3] = 6.0, -0.25, 5.0, 0.75  # ties: -0 (code 8), 4 (6), 1 (2)
    w[0, 32], w[0, 33] = 7.0, -1.0  # scale 2: 3.5 -> 4 (6), -0.5 (9)
    w[1, 0] = 2.0**-127  # the floor 6 * 2^-126 gives 2^-126: the code is 0.5 (1)
    packed, scales = quantize_mxfp4(w)
    assert scales.tolist() == [[127, 128], [1, 1]]
    assert packed[0, [0, 1, 16]].tolist() == [0x87, 0x26, 0x96]
    assert packed[1, 0] == 0x01
    largest = torch.full((1, 32), torch.finfo(torch.bfloat16).max)
    packed, scales = quantize_mxfp4(largest)
    assert scales.tolist() == [[127 + 126]] and packed[0, 0] == 0x66  # 2^128 / 2^126 rounds to 4


def test_refusals():
    with pytest.raises(ValueError):
        quantize_mxfp4(torch.zeros(1, 33))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError):
            quantize_e4m3fn(torch.tensor([[bad]]), 32, 32)
