"""Checks of the oracle itself: numerics.py and check_corpus.py.

The oracle judges the C++ library, so each of its fast paths is held here against something
slower that is correct by inspection: fractions, Python integers, plain loops.
"""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest

import check_corpus
import numerics as nm

FMA_CASES = 1_000_000


def f32(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def bits_of(value):
    return int(nm.f32_bits(np.float32(value)).reshape(-1)[0])


def bf16_of(values):
    """bf16 bits of f32 values, truncated: any bf16 will do."""
    return (nm.f32_bits(values) >> np.uint32(16)).astype(np.uint16)


def spread_bf16(rng, shape, spread=20):
    """bf16 with exponents over +-spread, where the order of a sum shows."""
    values = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    return bf16_of((values * rng.choice([-1, 1], shape)).astype(np.float32))


# ---------------------------------------------------------------------------------------------
# Codes


def e4m3fn_fraction(code):
    e, m = (code >> 3) & 15, code & 7
    value = Fraction(m, 512) if e == 0 else Fraction(8 + m) * Fraction(2) ** (e - 10)
    return -value if code & 0x80 else value


def test_decode_e4m3fn_all_codes():
    decoded = nm.decode_e4m3fn(np.arange(256))
    assert decoded.dtype == np.float32
    for code in range(256):
        if code in (0x7F, 0xFF):
            assert math.isnan(decoded[code])
        else:
            assert Fraction(float(decoded[code])) == e4m3fn_fraction(code)
            assert np.signbit(decoded[code]) == (code >= 0x80)
    assert decoded[0x7E] == 448 and decoded[0x01] == 2.0 ** -9 and decoded[0x38] == 1


def test_decode_e2m1_all_codes():
    expected = [0, .5, 1, 1.5, 2, 3, 4, 6]
    decoded = nm.decode_e2m1(np.arange(16))
    assert decoded.dtype == np.float32
    assert decoded.tolist() == expected + [-v for v in expected]
    assert np.signbit(decoded).tolist() == [False] * 8 + [True] * 8
    with pytest.raises(ValueError):
        nm.decode_e2m1(np.array([16]))


def test_decode_e8m0_all_bytes():
    decoded = nm.decode_e8m0(np.arange(256))
    assert decoded.dtype == np.float32
    for b in range(255):
        assert Fraction(float(decoded[b])) == Fraction(2) ** (b - 127)
    assert math.isnan(decoded[255])
    assert bits_of(decoded[0]) == 0x00400000


def test_bf16_round_trip_all_codes():
    codes = np.arange(65536).astype(np.uint16)
    wide = nm.bf16_to_f32(codes)
    assert np.array_equal(nm.f32_bits(wide), codes.astype(np.uint32) << 16)
    expected = codes.copy()
    expected[(codes & 0x7FFF) > 0x7F80] = 0x7FC0
    expected[0x8000] = 0
    assert np.array_equal(nm.store_bf16(wide), expected)


def test_unpack_e2m1_low_nibble_first():
    packed = np.array([[0x21, 0x43], [0x0F, 0xF0]], np.uint8)
    assert nm.unpack_e2m1(packed).tolist() == [[1, 2, 3, 4], [15, 0, 0, 15]]
    every = np.arange(256, dtype=np.uint8)[:, None]
    assert nm.unpack_e2m1(every).tolist() == [[b % 16, b // 16] for b in range(256)]


def nearest_code(value, table):
    """By the definition: the nearest, among equals the even code; beyond the end, the last."""
    return min(range(len(table)), key=lambda code: (abs(table[code] - value), code % 2))


def encode_inputs(rng, table, count):
    """Every value and every middle of a table with their f32 neighbours, and random values."""
    top = float(table[-1])
    exact = [float(v) for v in table] + [float((a + b) / 2) for a, b in zip(table, table[1:])]
    values = [np.float32(v) for v in exact + [top * 1.03, top * 1.04, top * 2, 3e38, 1e-45]]
    values += [np.nextafter(v, np.float32(0)) for v in values]
    values += [np.nextafter(v, np.float32(np.inf)) for v in values]
    values += list(np.exp(rng.uniform(-12, 8, count)).astype(np.float32))
    values += list(rng.uniform(0, top * 1.1, count).astype(np.float32))
    return np.array(values, np.float32)


@pytest.mark.parametrize("encode,codes,sign,decode", [
    (nm.encode_e4m3fn, 127, 0x80, nm.decode_e4m3fn),
    (nm.encode_e2m1, 8, 8, nm.decode_e2m1),
])
def test_encode_is_nearest_even(encode, codes, sign, decode):
    table = [Fraction(float(v)) for v in decode(np.arange(codes))]
    values = encode_inputs(np.random.default_rng(1), table, 500)
    expected = [nearest_code(Fraction(float(v)), table) for v in values]
    assert encode(values).tolist() == expected
    assert encode(-values).tolist() == [code | sign for code in expected]
    assert set(expected) == set(range(codes))


def test_encode_of_codes_and_specials():
    codes = np.arange(256).astype(np.uint8)
    codes[0xFF] = 0x7F  # a NaN encodes to one code, whatever its sign
    assert np.array_equal(nm.encode_e4m3fn(nm.decode_e4m3fn(codes)), codes)
    assert np.array_equal(nm.encode_e2m1(nm.decode_e2m1(np.arange(16))), np.arange(16))
    specials = np.array([0.0, -0.0, np.inf, -np.inf, 1e-30, -1e-30], np.float32)
    assert nm.encode_e4m3fn(specials).tolist() == [0, 0x80, 0x7E, 0xFE, 0, 0x80]
    assert nm.encode_e2m1(specials).tolist() == [0, 8, 7, 15, 0, 8]
    nans = f32([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF])
    assert nm.encode_e4m3fn(nans).tolist() == [0x7F] * 4
    for nan in nans:
        with pytest.raises(ValueError):
            nm.encode_e2m1(np.array([1, nan], np.float32))


def exact(bits):
    """The Fraction of finite f32 bits."""
    e, m = (bits >> 23) & 255, bits & 0x7FFFFF
    value = Fraction(m, 2 ** 149) if e == 0 else Fraction(m + 2 ** 23) * Fraction(2) ** (e - 150)
    return -value if bits >> 31 else value


def nearest_float_bits(value, low, bias_shift):
    """Of low and its successor (magnitude bits; infinity read as 2^128), the one nearest.

    bias_shift is how far the bits lie below f32 bits: 0 for f32, 16 for bf16.
    """
    def magnitude(bits):
        bits <<= bias_shift
        return Fraction(2) ** 128 if bits == 0x7F800000 else exact(bits)

    return min((low, low + 1), key=lambda bits: (abs(magnitude(bits) - value), bits % 2))


def test_store_bf16_is_nearest_even():
    rng = np.random.default_rng(2)
    values = rng.integers(0, 0x7F800000, 3000).astype(np.uint32)
    # Middles, their neighbours, subnormals, and the last finite bf16.
    middles = (rng.integers(0, 0x7F80, 500).astype(np.uint32) << 16) | np.uint32(0x8000)
    edges = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF],
                     np.uint32)
    values = np.concatenate([values, middles, middles - 1, middles + 1, edges])
    stored = nm.store_bf16(f32(values))
    expected = [nearest_float_bits(exact(int(v)), int(v) >> 16, 16) for v in values]
    assert stored.tolist() == expected
    negative = nm.store_bf16(f32(values | np.uint32(0x80000000)))
    assert negative.tolist() == [v | 0x8000 if v else 0 for v in expected]


def test_store_specials():
    bits = np.array([0x80000000, 0, 0x7F800001, 0xFFC12345, 0xFF800000, 0x80000001, 0x7F800000],
                    np.uint32)
    stored = [0, 0, 0x7FC00000, 0x7FC00000, 0xFF800000, 0x80000001, 0x7F800000]
    assert nm.f32_bits(nm.store_f32(f32(bits))).tolist() == stored
    # The negative subnormal rounds to a zero in bf16, and that is +0 there.
    assert nm.store_bf16(f32(bits)).tolist() == [0, 0, 0x7FC0, 0x7FC0, 0xFF80, 0, 0x7F80]


# ---------------------------------------------------------------------------------------------
# Fused multiply-add


def fma_fraction(a, b, c, flush):
    """A third opinion on finite inputs: fractions and a choice between two neighbours."""
    if flush:
        a, b, c = (v if v & 0x7F800000 else v & 0x80000000 for v in (a, b, c))
    product, addend = exact(a) * exact(b), exact(c)
    total = product + addend
    if total == 0:
        signs = ((a ^ b) >> 31, c >> 31)
        zero = product == 0 and addend == 0
        return 0x80000000 if zero and signs == (1, 1) else 0
    sign = 0x80000000 if total < 0 else 0
    total = abs(total)
    if flush:
        # 24 bits, unbounded exponent: scaling by 2^200 keeps the f32 grid out of the way, and
        # what could be flushed is tiny, so the scaled value cannot overflow.
        if total < Fraction(1, 2 ** 100):
            scaled = total * 2 ** 200
            if scaled < Fraction(1, 2 ** 100):
                return sign
            low = nearest_below(scaled)
            if exact(nearest_float_bits(scaled, low, 0)) < Fraction(2) ** (200 - 126):
                return sign
    return sign | nearest_float_bits(total, nearest_below(total), 0)


def nearest_below(value):
    """The largest finite f32 magnitude not above a positive value, by bisection."""
    low, high = 0, 0x7F800000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exact(middle) <= value else (low, middle)
    return low


SPECIALS = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x3F800000, 0x3F7FFFFF,
            0x3F800001, 0x1F800000, 0x20000000, 0x33800000, 0x34000000, 0x5F000000, 0x7F000000,
            0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]


def fma_cases(rng, count):
    """u32 bits a, b, c [count] of several kinds, shuffled together."""
    part = count // 8

    def anything(n):
        return rng.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)

    def with_exponent(low, high, n=part):
        """Random sign and mantissa (often short), biased exponents in [low, high)."""
        mantissa = rng.integers(0, 1 << 23, n) & -(1 << rng.integers(0, 24, n))
        sign = rng.integers(0, 2, n) << 31
        return (sign | rng.integers(low, high, n) << 23 | mantissa).astype(np.uint32)

    groups = [(anything(part), anything(part), anything(part))]
    groups.append(tuple(with_exponent(107, 147) for _ in range(3)))
    # Cancellation: c is the rounded -a*b, moved by a few units in the last place.
    a, b = with_exponent(90, 164), with_exponent(90, 164)
    c = nm.f32_bits(-(f32(a) * f32(b)))
    groups.append((a, b, c + rng.integers(-3, 4, part).astype(np.uint32)))
    # Ties: a*b is half a unit of c, moved by a little or not at all.
    c = with_exponent(60, 200)
    a = np.uint32(127 << 23) + rng.integers(0, 4, part).astype(np.uint32)
    a |= (rng.integers(0, 2, part) << 31).astype(np.uint32)
    b = ((c >> np.uint32(23) & np.uint32(255)) - np.uint32(24)) << np.uint32(23)
    b += rng.integers(-1, 2, part).astype(np.uint32)
    groups.append((a, b, c))
    # The edge of the subnormals: c beside 2^-126, a*b about 2^-149 ... 2^-152.
    c = np.uint32(0x800000) + rng.integers(-3, 4, part).astype(np.uint32)
    c |= (rng.integers(0, 2, part) << 31).astype(np.uint32)
    exponent = rng.integers(40, 60, part)
    a = with_exponent(0, 1) & np.uint32(0x80000003) | (exponent << 23).astype(np.uint32)
    b = ((254 - exponent - rng.integers(148, 153, part)) << 23).astype(np.uint32)
    groups.append((a, b, c))
    # Products around 2^-126 and below, c zero, subnormal or small.
    exponent = rng.integers(1, 128, part)
    a = with_exponent(0, 1) | (exponent << 23).astype(np.uint32)
    b = with_exponent(0, 1) | ((128 - exponent + rng.integers(0, 6, part)) << 23).astype(np.uint32)
    c = np.where(rng.integers(0, 2, part) == 0, with_exponent(0, 1), with_exponent(0, 3))
    groups.append((a, b, np.where(rng.integers(0, 4, part) == 0, np.uint32(0), c)))
    # Overflow: products around 2^128, c huge.
    exponent = rng.integers(127, 254, part)
    a = with_exponent(0, 1) | (exponent << 23).astype(np.uint32)
    b = with_exponent(0, 1) | ((381 - exponent - rng.integers(0, 3, part)) << 23).astype(np.uint32)
    groups.append((a, b, with_exponent(225, 255)))
    # Everything beside specials.
    pool = np.array(SPECIALS + [v | 0x80000000 for v in SPECIALS], np.uint32)
    rest = count - 7 * part
    picks = [np.where(rng.integers(0, 2, rest) == 0, rng.choice(pool, rest), anything(rest))
             for _ in range(3)]
    groups.append(tuple(picks))
    return tuple(np.concatenate(column) for column in zip(*groups))


def canonical_bits(values):
    """Bits with every NaN made one, zeros left alone."""
    bits = nm.f32_bits(values)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), bits)


@pytest.mark.parametrize("flush", [False, True])
def test_fma_against_integers(flush):
    a, b, c = fma_cases(np.random.default_rng(3 + flush), FMA_CASES)
    fast = canonical_bits(nm.fma(f32(a), f32(b), f32(c), flush))
    cases = zip(a.tolist(), b.tolist(), c.tolist())
    slow = np.fromiter((nm.fma_int(*abc, flush) for abc in cases), np.uint32, len(a))
    wrong = np.flatnonzero(fast != slow)
    assert not len(wrong), [hex(int(v[wrong[0]])) for v in (a, b, c, fast, slow)]
    # The cases must reach every kind of result, or the comparison says little.
    magnitude = slow & np.uint32(0x7FFFFFFF)
    assert np.sum(magnitude == 0) > 1000 and np.sum(magnitude == 0x7F800000) > 1000
    assert np.sum(slow == 0x80000000) > 100 and np.sum(magnitude > 0x7F800000) > 1000
    subnormal = np.sum((magnitude > 0) & (magnitude < 0x800000))
    assert subnormal == 0 if flush else subnormal > 1000


@pytest.mark.parametrize("flush", [False, True])
def test_fma_of_all_specials(flush):
    pool = SPECIALS + [v | 0x80000000 for v in SPECIALS]
    a, b, c = (np.array(v, np.uint32) for v in zip(*itertools.product(pool, repeat=3)))
    fast = canonical_bits(nm.fma(f32(a), f32(b), f32(c), flush))
    slow = [nm.fma_int(*abc, flush) for abc in zip(a.tolist(), b.tolist(), c.tolist())]
    assert fast.tolist() == slow


@pytest.mark.parametrize("flush", [False, True])
def test_fma_integers_against_fractions(flush):
    cases = [v.tolist() for v in fma_cases(np.random.default_rng(5 + flush), 16000)]
    checked = 0
    for a, b, c in zip(*cases):
        if max(v & 0x7FFFFFFF for v in (a, b, c)) < 0x7F800000:
            expected = fma_fraction(a, b, c, flush)
            assert nm.fma_int(a, b, c, flush) == expected, (hex(a), hex(b), hex(c))
            checked += 1
    assert checked > 12000


def test_fma_rounds_once():
    one = np.float32(1)
    assert bits_of(nm.fma(np.float32(2.0 ** -24), one, one)) == 0x3F800000
    assert bits_of(nm.fma(np.float32(2.0 ** -24 * (1 + 2.0 ** -23)), one, one)) == 0x3F800001
    # a * b = 2^-24 * (1 - 2^-46), just below the tie of an odd c. f64 has no room for the
    # difference beside c: it lands on the tie, and a second rounding goes up to the even one.
    a, b = np.float32(2.0 ** -12 * (1 + 2.0 ** -23)), np.float32(2.0 ** -12 * (1 - 2.0 ** -23))
    odd = f32(0x3F800001)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(odd)) == f32(0x3F800002)
    assert bits_of(nm.fma(a, b, odd)) == 0x3F800001
    assert bits_of(nm.fma(-a, b, -odd)) == 0xBF800001


def test_flush_is_after_rounding():
    one, least = np.float32(1), np.float32(2.0 ** -126)
    # 2^-126 - 2^-151 ties to 2^-126 in 24 bits; anything smaller rounds below and is flushed.
    # f32's own grid would round 2^-126 - 2^-150 up to 2^-126 as well, hence the difference.
    for step, kept in ((-151, True), (-152, True), (-150, False), (-149, False)):
        a, b = np.float32(-2.0 ** -60), np.float32(2.0 ** (step + 60))
        flushed = bits_of(nm.fma(a, b, least, flush=True))
        assert flushed == (0x00800000 if kept else 0)
        assert bits_of(nm.fma(-a, b, -least, flush=True)) == (flushed | 0x80000000)
        plain = bits_of(nm.fma(a, b, least))
        assert plain == (0x007FFFFF if step == -149 else 0x00800000)
    subnormal = f32(0x80400000)
    assert bits_of(nm.fma(subnormal, one, np.float32(-0.0), flush=True)) == 0x80000000
    assert math.isnan(nm.fma(subnormal, np.float32(np.inf), one, flush=True))
    assert nm.fma(subnormal, np.float32(np.inf), one) == -np.inf


def test_this_process_keeps_subnormals():
    # The tree and the bias are plain f32 additions: a library that sets FTZ would spoil them.
    small = np.full(64, 2.0 ** -149, np.float32)
    assert np.all(small + small == np.float32(2.0 ** -148))


# ---------------------------------------------------------------------------------------------
# Quantizing


def test_weight_block_scales_known_facts():
    just_above = np.float32(14336.001953125)
    for amax, byte, code in ((just_above, 133, 0x76), (np.float32(14336), 132, 0x7E)):
        w = np.zeros((1, 32), np.float32)
        w[0, 5] = amax
        codes, scales = nm.quantize_weight(w, "e4m3fn", 1, 32)
        assert scales.tolist() == [[byte]] and codes[0, 5] == code
        codes, scales, _ = nm.quantize_activations(w, 448)
        assert scales.tolist() == [[byte]] and codes[0, 5] == code


def test_activation_known_facts():
    zero = np.zeros((1, 32), np.float32)
    for limit, byte in ((224, 106), (448, 105)):
        codes, scales, xq = nm.quantize_activations(zero, limit)
        assert scales.tolist() == [[byte]] and not np.any(codes) and not np.any(xq)
    x = zero.copy()
    x[0, 7] = 300
    codes, scales, xq = nm.quantize_activations(x, 448)
    assert scales.tolist() == [[127]]
    assert codes[0].tolist() == [0x79 if i == 7 else 0 for i in range(32)]
    assert nm.bf16_to_f32(xq)[0, 7] == 288


def quantize_by_definition(x, limit):
    """One block (a list of f32 bits) to codes and byte, in fractions."""
    if any(v & 0x7FFFFFFF >= 0x7F800000 for v in x):
        return [0x7F] * len(x), 127
    values = [exact(v) for v in x]
    a = max([abs(v) for v in values] + [Fraction(float(np.float32(1e-4)))])
    if a > limit * Fraction(2) ** 119:
        return [0x7F] * len(x), 127
    e = min(e for e in range(-126, 128) if a <= limit * Fraction(2) ** e)
    table = [e4m3fn_fraction(code) for code in range(127)]
    return [nearest_code(abs(v) / Fraction(2) ** e, table) | (bits >> 24 & 0x80)
            for v, bits in zip(values, x)], e + 127


@pytest.mark.parametrize("limit", [224, 448])
def test_quantize_activations_by_definition(limit):
    rng = np.random.default_rng(7)
    m, k = 24, 75  # a short last block
    scale = 2.0 ** rng.integers(-30, 30, (m, 1))
    x = (rng.normal(0, 1, (m, k)) * scale).astype(np.float32)
    x[0] = f32(rng.integers(0, 1 << 32, k, dtype=np.uint64).astype(np.uint32))  # has huge, NaN
    x[1, 3], x[2, 70], x[3, 33] = np.nan, -np.inf, np.float32(limit * 2.0 ** 119)
    x[4, 33] = np.nextafter(x[3, 33], np.float32(np.inf))
    x[5, :32], x[6, :] = -0.0, f32(0x80000001)
    x[7, 0], x[7, 1:32] = limit, 0
    x[8, 0], x[8, 1:32] = np.nextafter(np.float32(limit), np.float32(np.inf)), 0
    codes, scales, xq = nm.quantize_activations(x, limit)
    assert codes.shape == x.shape and scales.shape == (m, 3) and xq.shape == x.shape
    for row in range(m):
        for block in range(3):
            part = slice(32 * block, min(k, 32 * block + 32))
            expected, byte = quantize_by_definition(nm.f32_bits(x[row, part]).tolist(), limit)
            assert scales[row, block] == byte
            assert codes[row, part].tolist() == expected
            for code, bits in zip(expected, xq[row, part].tolist()):
                if code & 0x7F == 0x7F:
                    assert bits == 0x7FC0
                else:
                    value = e4m3fn_fraction(code) * Fraction(2) ** (byte - 127)
                    assert exact(bits << 16) == value
    assert scales[7, 0] == 127 and scales[8, 0] == 128
    # The edge itself is a good block; a bad one reaches neither its neighbours nor other rows.
    assert scales[3].tolist()[1] == 127 + 119 and codes[3, 33] == (0x7E if limit == 448 else 0x76)
    assert np.all(codes[4, 32:64] == 0x7F) and scales[4, 1] == 127
    assert np.all(codes[1, :32] == 0x7F) and not np.any(codes[1, 32:] == 0x7F)


def test_a_bad_block_makes_its_row_nan_and_no_other():
    rng = np.random.default_rng(8)
    x = rng.normal(0, 1, (3, 64)).astype(np.float32)
    x[1, 40] = np.inf
    _, _, xq = nm.quantize_activations(x)
    y = nm.gemm(xq, nm.Weight("e4m3fn", np.zeros((5, 64), np.uint8), np.ones((5, 2), np.float32)))
    assert nm.f32_bits(y)[1].tolist() == [0x7FC00000] * 5
    assert not np.any(nm.f32_bits(y)[[0, 2]])


@pytest.mark.parametrize("limit", [224, 448])
def test_quantizing_twice_changes_no_value(limit):
    rng = np.random.default_rng(9)
    x = rng.normal(0, 1, (400, 96)) * 2.0 ** rng.integers(-25, 40, (400, 96))
    x = np.concatenate([x, rng.normal(0, 1, (400, 96)) * 2.0 ** rng.integers(-25, 40, (400, 1))])
    _, first, once = nm.quantize_activations(x.astype(np.float32), limit)
    _, second, twice = nm.quantize_activations(nm.bf16_to_f32(once), limit)
    assert np.array_equal(nm.bf16_to_f32(once), nm.bf16_to_f32(twice))
    assert np.any(first != second)  # the bytes may move, as the contract says


def test_quantizing_at_448_and_then_224_changes_values():
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 448, 2.0 ** -9
    once = nm.quantize_activations(x, 448)[2]
    assert np.any(nm.quantize_activations(nm.bf16_to_f32(once), 224)[2] != once)


@pytest.mark.parametrize("element,limit,floor", [("e4m3fn", 448, 1e-4), ("e2m1", 6, 6 / 2 ** 126)])
def test_quantize_weight_by_definition(element, limit, floor):
    rng = np.random.default_rng(10)
    n, k, block_n, block_k = 10, 75, 4, 32  # ragged both ways
    w = (rng.normal(0, 1, (n, k)) * 2.0 ** rng.integers(-8, 8, (n, k))).astype(np.float32)
    w[:4, :32], w[4:8, :32], w[4, 0], w[8, 70] = 0, f32(0x80000001), f32(3), 3e38
    codes, scales = nm.quantize_weight(w, element, block_n, block_k)
    assert codes.shape == w.shape and scales.shape == (3, 3)
    decode = {"e4m3fn": nm.decode_e4m3fn, "e2m1": nm.decode_e2m1}[element]
    count, sign = {"e4m3fn": (127, 0x80), "e2m1": (8, 8)}[element]
    table = [Fraction(float(v)) for v in decode(np.arange(count))]
    for row, column in itertools.product(range(3), range(3)):
        part = (slice(4 * row, min(n, 4 * row + 4)), slice(32 * column, min(k, 32 * column + 32)))
        values = [exact(v) for v in nm.f32_bits(w[part]).reshape(-1).tolist()]
        a = max([abs(v) for v in values] + [Fraction(float(np.float32(floor)))])
        e = min(e for e in range(-127, 128) if a <= limit * Fraction(2) ** e)
        assert scales[row, column] == e + 127
        signs = np.signbit(w[part]).reshape(-1).tolist()
        expected = [nearest_code(abs(v) / Fraction(2) ** e, table) | (sign if s else 0)
                    for v, s in zip(values, signs)]
        assert codes[part].reshape(-1).tolist() == expected
    assert scales[0, 0] == {"e4m3fn": 105, "e2m1": 1}[element]
    with pytest.raises(ValueError):
        nm.quantize_weight(np.full((1, 32), np.nan, np.float32), element, 1, 32)


# ---------------------------------------------------------------------------------------------
# Dot products


def dot_by_loops(x, w, element, scales, bias, swap=False):
    """One output from f32 bits, in the words of the contract; scales has one per 32-block."""
    zero = 0
    lanes = [zero] * 16
    if element == "bf16":
        padded = -(-len(x) // 32) * 32
        x, w = x + [zero] * (padded - len(x)), w + [zero] * (padded - len(w))
        for t in range(padded // 32):
            for lane in range(16):
                order = (0, 1) if swap else (1, 0)
                for i in order:
                    at = 32 * t + 2 * lane + i
                    lanes[lane] = nm.fma_int(w[at], x[at], lanes[lane], flush=True)
    else:
        padded = -(-len(x) // 512) * 512
        x, w = x + [zero] * (padded - len(x)), w + [zero] * (padded - len(w))
        scales = scales + [0x3F800000] * (padded // 32 - len(scales))
        least = bits_of(2.0 ** -100)
        x = [zero if v & 0x7FFFFFFF < least else v for v in x]
        if element == "e4m3fn":
            pairs = [(4 * j + i, 4 * j + 2 + i) for j in range(8) for i in range(2)]
        else:
            pairs = [(8 * j + i, 8 * j + 4 + i) for j in range(4) for i in range(4)]
        for b in range(padded // 32):
            d = zero
            for lo, hi in pairs:
                for i in ((lo, hi) if swap else (hi, lo)):
                    d = nm.fma_int(w[32 * b + i], x[32 * b + i], d)
            lanes[b % 16] = nm.fma_int(d, scales[b], lanes[b % 16])
    one = 0x3F800000
    for h in (8, 4, 2, 1):
        for i in range(h):
            lanes[i] = nm.fma_int(lanes[i + h], one, lanes[i])
    y = lanes[0]
    if bias is not None:
        y = nm.fma_int(bias, one, y)
    return 0 if y & 0x7FFFFFFF == 0 else y


def random_weight(rng, element, n, k, block_n=1, block_k=32):
    """A Weight whose scales are ordinary powers of two."""
    if element == "bf16":
        return nm.Weight("bf16", spread_bf16(rng, (n, k), 6))
    if element == "e4m3fn":
        codes = rng.integers(0, 0x7F, (n, k)) | rng.integers(0, 2, (n, k)) << 7
    else:
        codes = rng.integers(0, 16, (n, k))
    grid = (-(-n // block_n), -(-k // block_k))
    scales = nm.decode_e8m0(rng.integers(120, 135, grid))
    return nm.Weight(element, codes.astype(np.uint8), scales, block_n, block_k)


def check_by_loops(x, weight, bias=None, swap=False):
    m, k = x.shape
    n = len(weight.codes)
    y = nm.f32_bits(nm.gemm(x, weight, bias, swap))
    decode = {"bf16": nm.bf16_to_f32, "e4m3fn": nm.decode_e4m3fn, "e2m1": nm.decode_e2m1}
    wide_x = nm.f32_bits(nm.bf16_to_f32(x)).tolist()
    wide_w = nm.f32_bits(decode[weight.element](weight.codes)).tolist()
    for row, column in itertools.product(range(m), range(n)):
        scales = None
        if weight.scales is not None:
            grid = nm.f32_bits(weight.scales)[column // weight.block_n]
            scales = [int(grid[32 * b // weight.block_k]) for b in range(-(-k // 32))]
        addend = None if bias is None else bits_of(bias[column])
        expected = dot_by_loops(wide_x[row], wide_w[column], weight.element, scales, addend, swap)
        assert y[row, column] == expected, (row, column)


@pytest.mark.parametrize("element", ["bf16", "e4m3fn", "e2m1"])
@pytest.mark.parametrize("swap", [False, True])
def test_gemm_by_loops(element, swap):
    rng = np.random.default_rng(11)
    for k, block_n, block_k in ((1, 1, 32), (70, 2, 32), (576, 3, 128), (1100, 32, 32)):
        k += k % 2 if element == "e2m1" else 0
        weight = random_weight(rng, element, 5, k, block_n, block_k)
        bias = rng.normal(0, 1, 5).astype(np.float32) if k == 70 else None
        check_by_loops(spread_bf16(rng, (3, k)), weight, bias, swap)


@pytest.mark.parametrize("element", ["bf16", "e4m3fn", "e2m1"])
def test_gemm_by_loops_of_extremes(element):
    rng = np.random.default_rng(12)
    m, n, k = 12, 8, 96
    # Any bf16 bits, then rows that stay finite: near the flush of activations, and subnormal.
    x = rng.integers(0, 65536, (m, k)).astype(np.uint16)
    x[3:6] = spread_bf16(rng, (3, k), 2)
    x[3:6] -= np.uint16(100 << 7)
    x[6:9] = spread_bf16(rng, (3, k), 1)
    x[6:9] -= np.uint16(124 << 7)
    x[9, :], x[10, :] = 0x8000, 0
    x[9, 5] = 0x7F80
    if element == "bf16":
        weight = nm.Weight("bf16", rng.integers(0, 65536, (n, k)).astype(np.uint16))
        weight.codes[4:] = spread_bf16(rng, (4, k), 4)
        weight.codes[6, ::3] = 0x8001
    else:
        weight = random_weight(rng, element, n, k)
        weight.scales = nm.decode_e8m0(rng.integers(0, 256, (n, 3)))
        weight.scales[0] = 0
        weight.scales[1, :2] = nm.decode_e8m0(np.array([0, 255]))
        weight.scales[2] = f32([0x00000001, 0x7F7FFFFF, 0x3F812345])
        if element == "e4m3fn":
            weight.codes[3, 40] = 0x7F
    bias = f32([0, 0x80000000, 0x7F800000, 1, 0x80000001, 0x3F800000, 0x7F7FFFFF, 0xFFC00000])
    check_by_loops(x, weight)
    check_by_loops(x, weight, bias)


def test_gemm_facts():
    ones = np.full((1, 64), 0x3F80, np.uint16)
    codes = np.full((1, 64), 0x38, np.uint8)
    scales = np.array([[2, 4]], np.float32)
    assert nm.gemm(ones, nm.Weight("e4m3fn", codes, scales)).tolist() == [[32 * 2 + 32 * 4]]
    assert nm.gemm(ones, nm.Weight("bf16", ones)).tolist() == [[64]]
    # 2 * (32 * 2 + 32 * 4) and a bias that cancels it; the sign of x must not reach the zero.
    bias, minus_ones = np.array([384], np.float32), ones | np.uint16(0x8000)
    zero = nm.gemm(minus_ones, nm.Weight("e2m1", codes * 0 + 4, scales), bias)
    assert nm.f32_bits(zero).tolist() == [[0]]
    # An overflow inside a block is not rescued by its scale.
    huge = np.full((1, 32), 0x7F7F, np.uint16)
    weight = nm.Weight("e4m3fn", codes[:, :32], np.array([[2.0 ** -120]], np.float32))
    assert nm.gemm(huge, weight).tolist() == [[np.inf]]
    # |x| < 2^-100 counts as zero with codes, and as itself with bf16 weights.
    for exponent, kept in ((-100, True), (-101, False)):
        x = bf16_of(np.full((1, 1), 2.0 ** exponent, np.float32))
        y = nm.gemm(x, nm.Weight("e4m3fn", codes[:, :1], scales[:, :1] / 2))
        assert y[0, 0] == (2.0 ** exponent if kept else 0)
        assert nm.gemm(x, nm.Weight("bf16", ones[:, :1]))[0, 0] == 2.0 ** exponent
    empty = np.zeros((2, 0), np.uint16)
    codes, scales = empty.astype(np.uint8), np.zeros((2, 0), np.float32)
    for weight in (nm.Weight("bf16", empty), nm.Weight("e4m3fn", codes, scales)):
        assert not np.any(nm.f32_bits(nm.gemm(empty, weight)))
        bias = np.array([1, -0.0], np.float32)
        assert nm.f32_bits(nm.gemm(empty, weight, bias)).tolist() == [[0x3F800000, 0]] * 2


def test_gemm_refuses_what_does_not_fit():
    x = np.zeros((1, 64), np.uint16)
    codes = np.zeros((4, 64), np.uint8)
    with pytest.raises(ValueError):
        nm.gemm(x, nm.Weight("e4m3fn", codes, np.ones((4, 3), np.float32)))
    with pytest.raises(ValueError):
        nm.gemm(x, nm.Weight("e4m3fn", codes, np.ones((4, 4), np.float32), 1, 16))
    with pytest.raises(ValueError):
        nm.gemm(x[:, :32], nm.Weight("e4m3fn", codes, np.ones((4, 2), np.float32)))
    with pytest.raises(ValueError):
        nm.gemm(x, nm.Weight("e5m2", codes, np.ones((4, 2), np.float32)))


@pytest.mark.parametrize("element", ["bf16", "e4m3fn", "e2m1"])
def test_gemm_rows_and_columns_are_independent(element):
    rng = np.random.default_rng(13)
    x, weight = spread_bf16(rng, (9, 200)), random_weight(rng, element, 300, 200)
    y = nm.f32_bits(nm.gemm(x, weight))
    scales = None if weight.scales is None else weight.scales[250:]
    part = nm.Weight(element, weight.codes[250:], scales)
    assert np.array_equal(nm.f32_bits(nm.gemm(x[4:5], part)), y[4:5, 250:])


# ---------------------------------------------------------------------------------------------
# The corpus checker


def make_corpus(seed, element, m, n, k, block_n=1, block_k=32, scale="e8m0", quantize=0,
                with_bias=False):
    """The bytes of a corpus whose results come from the oracle."""
    rng = np.random.default_rng(seed)
    weight = random_weight(rng, element, n, k, block_n, block_k)
    x = nm.bf16_to_f32(spread_bf16(rng, (m, k)))
    if quantize:
        x = x * np.float32(1.0009765625)  # no longer bf16
        used = nm.quantize_activations(x, quantize)[2]
    else:
        used = bf16_of(x)
    arrays = [("x", "f32", x)]
    if element == "e2m1":
        arrays.append(("codes", "u8", weight.codes[:, ::2] | weight.codes[:, 1::2] << 4))
    else:
        arrays.append(("codes", "u16" if element == "bf16" else "u8", weight.codes))
    if element == "bf16":
        scale = "none"
    elif scale == "e8m0":
        grid = (nm.f32_bits(weight.scales) >> np.uint32(23)).astype(np.uint8)
        arrays.append(("scales", "u8", grid))
    else:
        weight.scales = weight.scales * np.float32(1.1)
        arrays.append(("scales", "f32", weight.scales))
    bias = None
    if with_bias:
        bias = rng.normal(0, 100, n).astype(np.float32)
        arrays.append(("bias", "f32", bias))
    arrays.append(("y", "u32", nm.f32_bits(nm.gemm(used, weight, bias))))
    header = {"format": "test", "contract": 1, "element": element, "block_n": block_n,
              "block_k": block_k, "scale": scale, "quantize": quantize,
              "arrays": [{"name": name, "dtype": dtype, "shape": list(array.shape)}
                         for name, dtype, array in arrays]}
    raw = b"".join(array.astype(check_corpus.DTYPES[dtype]).tobytes()
                   for _, dtype, array in arrays)
    return json.dumps(header).encode() + b"\n" + raw


CORPORA = [
    dict(element="bf16", m=3, n=7, k=576, with_bias=True),
    dict(element="e4m3fn", m=3, n=7, k=70, with_bias=True),
    dict(element="e4m3fn", m=2, n=40, k=576, block_n=32, block_k=32, scale="f32"),
    dict(element="e4m3fn", m=2, n=140, k=300, block_n=128, block_k=128, quantize=448),
    dict(element="e2m1", m=4, n=9, k=576, quantize=0),
]


def write(tmp_path, name, blob):
    path = tmp_path / name
    path.write_bytes(blob)
    return str(path)


@pytest.mark.parametrize("arguments", CORPORA)
def test_corpus_passes_and_one_flipped_bit_fails(arguments, tmp_path, capsys):
    blob = make_corpus(20, **arguments)
    assert check_corpus.main([write(tmp_path, "good.bin", blob)]) == 0
    outputs = arguments["m"] * arguments["n"]
    assert f"good.bin: {outputs} outputs, 0 different\n" in capsys.readouterr().out

    # The lowest bit of the last output: y is the last array and little-endian.
    flipped = bytearray(blob)
    flipped[-4] ^= 1
    was = int.from_bytes(blob[-4:], "little")
    assert check_corpus.main([write(tmp_path, "bad.bin", bytes(flipped))]) == 1
    out = capsys.readouterr().out
    assert f"bad.bin: {outputs} outputs, 1 different\n" in out
    assert f"row {arguments['m'] - 1}, column {arguments['n'] - 1}: " in out
    assert f"0x{was ^ 1:08X}" in out and f"0x{was:08X}" in out


def test_one_bad_file_among_good_ones_fails(tmp_path):
    good, other = (make_corpus(seed, "e2m1", 2, 8, 64) for seed in (21, 22))
    bad = bytearray(good)
    bad[-1] ^= 0x80
    paths = [write(tmp_path, "a", good), write(tmp_path, "b", bytes(bad)),
             write(tmp_path, "c", other)]
    assert check_corpus.main(paths) == 1
    assert check_corpus.main([paths[0], paths[2]]) == 0


def test_corpus_that_cannot_see_the_order_fails(tmp_path, capsys):
    # One column: no pair has two elements that are not zero.
    blind = write(tmp_path, "blind", make_corpus(23, "e4m3fn", 3, 7, 1))
    assert check_corpus.main([blind]) == 1
    out = capsys.readouterr().out
    assert "21 outputs, 0 different" in out and "no output depends on the order" in out
    # Beside a file of the same element that sees it, it is welcome; of another, it is not.
    same = write(tmp_path, "same", make_corpus(24, "e4m3fn", 3, 7, 70))
    other = write(tmp_path, "other", make_corpus(25, "e2m1", 3, 7, 70))
    assert check_corpus.main([blind, same]) == 0
    assert check_corpus.main([blind, other]) == 1


def test_a_swapped_corpus_is_found(tmp_path, monkeypatch):
    right = nm.gemm
    monkeypatch.setattr(nm, "gemm", lambda x, w, bias=None, swap=False: right(x, w, bias, True))
    blobs = [make_corpus(26, element, 3, 7, 576) for element in ("bf16", "e4m3fn", "e2m1")]
    monkeypatch.undo()
    for blob in blobs:
        assert check_corpus.main([write(tmp_path, "swapped", blob)]) == 1


def test_corpus_that_does_not_fit_is_refused(tmp_path):
    blob = make_corpus(27, "e4m3fn", 2, 4, 64, with_bias=True)
    line, _, data = blob.partition(b"\n")
    assert check_corpus.main([write(tmp_path, "good", blob)]) == 0

    def changed(**values):
        return json.dumps({**json.loads(line), **values}).encode() + b"\n" + data

    renamed = json.loads(line)["arrays"]
    renamed = [{**a, "name": "bios" if a["name"] == "bias" else a["name"]} for a in renamed]
    broken = [blob[:-1], blob + b"\0", b"", b"{}\n", b"[]\n" + data, line, changed(contract=2),
              changed(block_k=48), changed(block_n=2), changed(scale="f32"), changed(scale="none"),
              changed(element="bf16"), changed(element="e5m2"), changed(quantize=100),
              changed(arrays=[]), changed(arrays=renamed)]
    for i, bad in enumerate(broken):
        assert check_corpus.main([write(tmp_path, f"broken{i}", bad)]) == 2, i
    # x that is not bf16, where it is to be used as it lies.
    not_bf16 = bytearray(blob)
    not_bf16[len(line) + 1] = 1
    assert check_corpus.main([write(tmp_path, "raw", bytes(not_bf16))]) == 2
    assert check_corpus.main([str(tmp_path / "missing")]) == 2
    assert check_corpus.main([]) == 2
