"""The numeric contract, version 1 (docs/determinism.md), transcribed on its own.

Implemented here: the codes (e4m3fn, e2m1, e8m0, bf16), encoding and storing, the 1x32
power-of-two quantization of activations, the power-of-two quantization of weights, and the
order of a dot product for bf16, e4m3fn and e2m1 weights with its epilogue.

It shares nothing with the C++ sources and was written from the text of the contract alone, so
that agreement between the two means something.  Keep it that way: repair it from the contract,
never from the library.

Exactness.  There are two fused multiply-adds:

* fma_int works on Python integers and is correct by inspection;
* fma works on numpy arrays.  With f32 inputs the product a*b has at most 48 significant bits and
  lies between 2^-298 and 2^256, so it is exact in f64.  TwoSum gives s + e == a*b + c with s the
  nearest f64 (nothing overflows or underflows in f64 at these magnitudes).  s is then turned
  into the round-to-odd value of the exact sum: 53 bits whose last bit is sticky.  Rounding that
  to at most 24 bits equals rounding the exact sum, because 53 >= 24 + 2; f32 subnormals only
  have fewer bits.  Plain f64 addition followed by a conversion would round twice.

The tests compare the two on some millions of cases.

Arrays: f32 is numpy.float32, bf16 is numpy.uint16 holding the bits, codes are numpy.uint8.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

CONTRACT = 1
BLOCK = 32
LANES = 16

F32_SIGN = 0x80000000
F32_INF = 0x7F800000
F32_NAN = 0x7FC00000
BF16_NAN = 0x7FC0
E4M3_NAN = 0x7F
E4M3_MAX = 448
E2M1_MAX = 6

MIN_NORMAL = 2.0 ** -126
# A 24-bit rounding with unbounded exponent reaches 2^-126 from here on: the largest 24-bit value
# below is 2^-126 - 2^-150, and the tie between them goes to the even one, 2^-126.
FLUSH_BELOW = 2.0 ** -126 - 2.0 ** -151
ACTIVATION_FLUSH = 2.0 ** -100


# ---------------------------------------------------------------------------------------------
# Codes


def _e4m3fn_value(code):
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        value = math.ldexp(mantissa, -9)
    else:
        value = math.ldexp(8 + mantissa, exponent - 10)
    return -value if code & 0x80 else value


_E4M3FN = np.array([_e4m3fn_value(code) for code in range(256)], np.float32)
_E2M1_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array(_E2M1_POSITIVE + tuple(-v for v in _E2M1_POSITIVE), np.float32)


def decode_e4m3fn(codes):
    """u8 codes to f32."""
    return _E4M3FN[np.asarray(codes, np.uint8)]


def decode_e2m1(codes):
    """u8 codes 0..15, one per element, to f32."""
    codes = np.asarray(codes, np.uint8)
    if np.any(codes > 15):
        raise ValueError("an e2m1 code has four bits")
    return _E2M1[codes]


def decode_e8m0(scale_bytes):
    """u8 exponents to f32: 2^(b-127), where 0 is the subnormal 2^-127 and 255 is NaN."""
    b = np.asarray(scale_bytes, np.uint8).astype(np.uint32)
    bits = np.where(b == 0, np.uint32(1 << 22), b << np.uint32(23))
    return np.where(b == 255, np.uint32(F32_NAN), bits).astype(np.uint32).view(np.float32)


def bf16_to_f32(bits):
    """u16 bf16 bits to f32."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_bits(values):
    """f32 to its u32 bits."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def unpack_e2m1(packed):
    """u8 [n, k/2] to codes [n, k]: even k in the low nibble, odd k in the high one."""
    packed = np.asarray(packed, np.uint8)
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(packed.shape[:-1] + (2 * packed.shape[-1],))


def _encode_magnitude(values, table):
    """The nearest index into an ascending table, ties to the even index, saturating."""
    table = np.asarray(table, np.float64)
    middles = (table[:-1] + table[1:]) / 2  # exact: few bits, nearby exponents
    with np.errstate(invalid="ignore"):  # a signalling NaN
        magnitude = np.abs(values.astype(np.float64))
    index = np.searchsorted(middles, magnitude, side="left")  # a tie finds the lower index
    at = np.minimum(index, len(middles) - 1)
    tie = (index < len(middles)) & (middles[at] == magnitude)
    return (index + (tie & (index % 2 == 1))).astype(np.uint8)


def encode_e4m3fn(values):
    """Numbers (f32, or f64 holding exact quotients) to u8 codes."""
    values = np.asarray(values)
    code = _encode_magnitude(values, _E4M3FN[:0x7F])
    code = code | np.where(np.signbit(values), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(E4M3_NAN), code)


def encode_e2m1(values):
    """Numbers to u8 codes 0..15; NaN has no code and is refused."""
    values = np.asarray(values)
    if np.any(np.isnan(values)):
        raise ValueError("e2m1 has no NaN")
    code = _encode_magnitude(values, _E2M1_POSITIVE)
    return code | np.where(np.signbit(values), 8, 0).astype(np.uint8)


def store_f32(values):
    """What a result becomes in f32: any NaN is 0x7FC00000, any zero is +0."""
    bits = f32_bits(values)
    bits = np.where(bits & np.uint32(0x7FFFFFFF) == 0, np.uint32(0), bits)
    bits = np.where(bits & np.uint32(0x7FFFFFFF) > F32_INF, np.uint32(F32_NAN), bits)
    return bits.astype(np.uint32).view(np.float32)


def store_bf16(values):
    """What a result becomes in bf16: nearest even on the f32 bits, subnormals kept."""
    bits = f32_bits(values).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    rounded = np.where(rounded & np.uint64(0x7FFF) == 0, np.uint64(0), rounded)
    nan = (bits & np.uint64(0x7FFFFFFF)) > F32_INF
    return np.where(nan, np.uint64(BF16_NAN), rounded).astype(np.uint16)


# ---------------------------------------------------------------------------------------------
# Fused multiply-add


def _f32_integer(bits):
    """(sign, magnitude in units of 2^-149) of finite f32 bits."""
    exponent, mantissa = (bits >> 23) & 255, bits & 0x7FFFFF
    if exponent:
        return bits >> 31, (mantissa | 0x800000) << (exponent - 1)
    return bits >> 31, mantissa


def _nearest_even(value, shift):
    """value / 2^shift to the nearest integer, ties to even."""
    quotient, rest = value >> shift, value & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    return quotient + (rest > half or (rest == half and quotient & 1))


def fma_int(a, b, c, flush=False):
    """fma on u32 bit patterns (Python ints) by integer arithmetic; any NaN is 0x7FC00000.

    flush: subnormal inputs count as zeros of their sign, and the result becomes a zero of its
    sign when the exact value, rounded to 24 bits with unbounded exponent, is below 2^-126.
    """
    if flush:
        a, b, c = (v if v & F32_INF else v & F32_SIGN for v in (a, b, c))
    magnitudes = [v & 0x7FFFFFFF for v in (a, b, c)]
    if max(magnitudes) > F32_INF:
        return F32_NAN
    product_sign = (a ^ b) & F32_SIGN
    if F32_INF in magnitudes[:2]:
        if 0 in magnitudes[:2]:
            return F32_NAN
        if magnitudes[2] == F32_INF and (c & F32_SIGN) != product_sign:
            return F32_NAN
        return product_sign | F32_INF
    if magnitudes[2] == F32_INF:
        return c

    (_, ia), (_, ib), (c_sign, ic) = (_f32_integer(v) for v in (a, b, c))
    product = -(ia * ib) if product_sign else ia * ib  # in units of 2^-298
    addend = (-ic if c_sign else ic) << 149
    total = product + addend
    if total == 0:
        # Two zeros of one sign keep it; everything else that cancels is +0.
        return product_sign if product == 0 and addend == 0 and product_sign == c & F32_SIGN else 0
    sign, total = (F32_SIGN, -total) if total < 0 else (0, total)

    # The last place kept: 24 bits below the leading one, but never finer than 2^-149.
    length = total.bit_length()
    if flush:
        if length > 24:
            kept = _nearest_even(total, length - 24) << (length - 24)
        else:
            kept = total
        if kept < 1 << (298 - 126):
            return sign
    shift = max(length - 24, 298 - 149)
    mantissa = _nearest_even(total, shift)
    if mantissa == 1 << 24:
        mantissa, shift = 1 << 23, shift + 1
    if mantissa < 1 << 23:  # subnormal: only possible at the finest shift
        return sign | mantissa
    exponent = shift - (298 - 149) + 1
    if exponent >= 255:
        return sign | F32_INF
    return sign | (exponent << 23) | (mantissa & 0x7FFFFF)


def _add_round(product, c, flush):
    """product + c, both f64 arrays with the shapes of the module's docstring, to f32."""
    s = product + c
    rest = s - product
    e = (product - (s - rest)) + (c - rest)
    # To odd: when e is not zero and s ends in 0, the exact value lies between s and the
    # neighbour on e's side, whose last bit is 1.  Where s is not finite, e is NaN: no match.
    bits = s.view(np.int64)
    inexact = (np.abs(e) > 0) & (bits & 1 == 0)
    away = np.signbit(e) == np.signbit(s)
    odd = np.where(inexact, np.where(away, bits + 1, bits - 1), bits).view(np.float64)
    if flush:
        odd = np.where(np.abs(odd) < FLUSH_BELOW, np.copysign(0.0, odd), odd)
    return odd.astype(np.float32)


def _as_zero(values):
    """f64 copies of f32 values, the subnormal ones replaced by zeros of their sign."""
    values = values.astype(np.float64)
    return np.where(np.abs(values) < MIN_NORMAL, np.copysign(0.0, values), values)


def fma(a, b, c, flush=False):
    """fma on f32 arrays; flush as in fma_int. The bits of a NaN are not specified."""
    a, b, c = (np.asarray(v, np.float32) for v in (a, b, c))
    with np.errstate(all="ignore"):
        if flush:
            a, b, c = _as_zero(a), _as_zero(b), _as_zero(c)
        else:
            a, b, c = (v.astype(np.float64) for v in (a, b, c))
        return _add_round(a * b, c, flush)


# ---------------------------------------------------------------------------------------------
# Quantizing


def _ceil_div(a, b):
    return -(-a // b)


def _scale_exponent(a, limit):
    """The smallest e with a <= limit * 2^e, for finite a > 0 (exact: only frexp)."""
    mantissa, exponent = np.frexp(np.asarray(a, np.float64))
    limit_mantissa, limit_exponent = math.frexp(limit)
    return exponent - limit_exponent + (mantissa > limit_mantissa)


def _pad_to(array, axis, size, value=0):
    width = [(0, 0)] * array.ndim
    width[axis] = (0, size - array.shape[axis])
    return np.pad(array, width, constant_values=value)


def quantize_activations(x, limit=224):
    """f32 [m, k] to (codes u8 [m, k], scale bytes u8 [m, ceil(k/32)], bf16 bits [m, k])."""
    if limit not in (224, 448):
        raise ValueError("the limit is 224 or 448")
    x = np.asarray(x, np.float32)
    m, k = x.shape
    blocks = _ceil_div(k, BLOCK)
    grouped = _pad_to(x, 1, blocks * BLOCK).reshape(m, blocks, BLOCK)
    with np.errstate(all="ignore"):
        # numpy's maximum hands a NaN on, so one test finds every bad block.
        a = np.maximum(np.max(np.abs(grouped), axis=2, initial=0), np.float32(1e-4))
        bad = ~np.isfinite(a) | (a.astype(np.float64) > limit * 2.0 ** 119)
        exponent = _scale_exponent(np.where(bad, np.float32(1), a), limit)
        exponent = np.where(bad, 0, exponent)
        scale = np.ldexp(1.0, exponent)[:, :, None]
        # In f64 the quotient is exact even where f32 would fall into its subnormals.
        codes = encode_e4m3fn(grouped.astype(np.float64) / scale)
        codes = np.where(bad[:, :, None], np.uint8(E4M3_NAN), codes)
        wide = (decode_e4m3fn(codes) * scale).astype(np.float32)
    xq = f32_bits(wide) >> np.uint32(16)  # exact, so the sign of a zero is kept as well
    xq = np.where(np.isnan(wide), BF16_NAN, xq).astype(np.uint16)
    codes = codes.reshape(m, blocks * BLOCK)[:, :k]
    xq = xq.reshape(m, blocks * BLOCK)[:, :k]
    return codes, (exponent + 127).astype(np.uint8), xq


_WEIGHT_RULES = {
    "e4m3fn": (E4M3_MAX, np.float32(1e-4), encode_e4m3fn),
    "e2m1": (E2M1_MAX, np.float32(6 * 2.0 ** -126), encode_e2m1),
}


def quantize_weight(w, element, block_n, block_k):
    """f32 [n, k] to (codes u8 [n, k], e8m0 bytes [ceil(n/block_n), ceil(k/block_k)]).

    The power-of-two rule of the writers of checkpoints. A weight that is not finite is refused:
    the contract gives it no meaning.
    """
    limit, floor, encode = _WEIGHT_RULES[element]
    w = np.asarray(w, np.float32)
    if not np.all(np.isfinite(w)):
        raise ValueError("a weight must be finite")
    n, k = w.shape
    rows, columns = _ceil_div(n, block_n), _ceil_div(k, block_k)
    padded = _pad_to(_pad_to(w, 0, rows * block_n), 1, columns * block_k)
    grid = padded.reshape(rows, block_n, columns, block_k)
    a = np.maximum(np.max(np.abs(grid), axis=(1, 3), initial=0), floor)
    exponent = _scale_exponent(a, limit)
    scale = np.ldexp(1.0, exponent)[:, None, :, None]
    codes = encode(grid.astype(np.float64) / scale)
    codes = codes.reshape(rows * block_n, columns * block_k)[:n, :k]
    return codes, (exponent + 127).astype(np.uint8)


def round_to_bf16(values):
    """f64 to bf16 bits, rounded once: eight bits of mantissa, never finer than 2^-133."""
    values = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        last = np.maximum(np.frexp(values)[1] - 8, -133)
        rounded = np.ldexp(np.rint(np.ldexp(values, -last)), last).astype(np.float32)
    bits = f32_bits(rounded) >> np.uint32(16)
    return np.where(np.isnan(values), BF16_NAN, bits).astype(np.uint16)


def _per_column(scales, block_k, k):
    """[m, ceil(k / block_k)] to [m, k]."""
    return np.asarray(scales, np.float32)[:, np.arange(k) // block_k]


def inside_x(scales):
    """Which scales of activations are multiplied into them: powers of two, 2^-91 to 2^119."""
    mantissa, exponent = np.frexp(np.asarray(scales, np.float64))
    return (mantissa == 0.5) & (exponent - 1 >= -91) & (exponent - 1 <= 119)


def split_codes(codes, scales, block_k):
    """Activations as codes u8 [m, k] with f32 scales to (x bf16 bits [m, k], f32 [m, ceil(k/32)]).

    The second are the factors that are left for the sums of the blocks, 1 where a scale is in x.
    """
    scale = _per_column(scales, block_k, codes.shape[1])
    inside = inside_x(scale)
    with np.errstate(all="ignore"):
        x = decode_e4m3fn(codes).astype(np.float64) * np.where(inside, scale, np.float32(1))
    return round_to_bf16(x), np.where(inside, np.float32(1), scale)[:, ::BLOCK]


def requantize_codes(codes, scales, block_k):
    """What gemm on e2m1 weights makes of them: bf16 rounded once, then quantized at 224."""
    with np.errstate(all="ignore"):
        x = decode_e4m3fn(codes).astype(np.float64) * _per_column(scales, block_k, codes.shape[1])
    return quantize_activations(bf16_to_f32(round_to_bf16(x)), 224)[2]


# ---------------------------------------------------------------------------------------------
# Dot products


@dataclasses.dataclass
class Weight:
    """A weight [n, k].

    codes: u16 bf16 bits for "bf16", else one u8 code per element (unpack_e2m1 for packed bytes).
    scales: f32 [ceil(n/block_n), ceil(k/block_k)], already decoded; None for "bf16".
    """

    element: str
    codes: np.ndarray
    scales: Optional[np.ndarray] = None
    block_n: int = 1
    block_k: int = BLOCK


# (lo, hi) in the order of the chain; the second of a pair is accumulated first.
PAIRS = {
    "e4m3fn": [(4 * j + i, 4 * j + 2 + i) for j in range(8) for i in range(2)],
    "e2m1": [(8 * j + i, 8 * j + 4 + i) for j in range(4) for i in range(4)],
}
_DECODE = {"bf16": bf16_to_f32, "e4m3fn": decode_e4m3fn, "e2m1": decode_e2m1}

# Cells of one [lane, row, column] step: the temporaries of a step should stay in the cache.
_STEP_CELLS = 1 << 15


def _tree(lanes):
    """[16, ...] f32 to [...]."""
    lanes = lanes.copy()
    for h in (8, 4, 2, 1):
        lanes[:h] = lanes[:h] + lanes[h:2 * h]
    return lanes[0]


def _lanes_of_codes(x, w, scales, x_scales, element, swap):
    """Code formats: x f32 [m, K], w f32 [n, K], K a multiple of 512.

    scales f32 [n, K/32], x_scales f32 [m, K/32]: each sum of a block times their f32 product.
    """
    m, n, rows = x.shape[0], w.shape[0], x.shape[1] // (BLOCK * LANES)
    # [row of lanes, element of the block, lane, x row, w row]
    x = x.astype(np.float64).reshape(m, rows, LANES, BLOCK).transpose(1, 3, 2, 0)[..., None]
    w = w.astype(np.float64).reshape(n, rows, LANES, BLOCK).transpose(1, 3, 2, 0)[..., None, :]
    scales = scales.reshape(n, rows, LANES).transpose(1, 2, 0)[..., None, :]
    x_scales = x_scales.reshape(m, rows, LANES).transpose(1, 2, 0)[..., None]
    total = np.zeros((LANES, m, n), np.float32)
    for row in range(rows):
        d = np.zeros((LANES, m, n), np.float32)
        for lo, hi in PAIRS[element]:
            for i in (lo, hi) if swap else (hi, lo):
                d = _add_round(w[row, i] * x[row, i], d.astype(np.float64), False)
        scale = (x_scales[row] * scales[row]).astype(np.float64)
        total = _add_round(d * scale, total.astype(np.float64), False)
    return total


def _lanes_of_bf16(x, w, swap):
    """bf16 weights: x f32 [m, K], w f32 [n, K], K a multiple of 32."""
    m, n, steps = x.shape[0], w.shape[0], x.shape[1] // BLOCK
    # [step, element of the pair, lane, x row, w row]
    x = _as_zero(x).reshape(m, steps, LANES, 2).transpose(1, 3, 2, 0)[..., None]
    w = _as_zero(w).reshape(n, steps, LANES, 2).transpose(1, 3, 2, 0)[..., None, :]
    total = np.zeros((LANES, m, n), np.float32)
    for t in range(steps):
        for i in (0, 1) if swap else (1, 0):
            # total was flushed by the step before, so it holds no subnormal input.
            total = _add_round(w[t, i] * x[t, i], total.astype(np.float64), True)
    return total


def _spread_scales(weight, n, k, padded_k):
    """The f32 scale of every 32-block, [n, padded_k / 32]; 1 beyond the columns of the weight."""
    if weight.block_n < 1 or weight.block_k < BLOCK or weight.block_k % BLOCK:
        raise ValueError("block_n is at least 1 and block_k a multiple of 32")
    grid = np.asarray(weight.scales, np.float32)
    expected = (_ceil_div(n, weight.block_n), _ceil_div(k, weight.block_k))
    if grid.shape != expected:
        raise ValueError(f"the scale grid is {grid.shape}, not {expected}")
    rows = np.arange(n) // weight.block_n
    columns = np.arange(_ceil_div(k, BLOCK)) * BLOCK // weight.block_k
    return _pad_to(grid[rows][:, columns], 1, padded_k // BLOCK, np.float32(1))


def gemm(x, weight, bias=None, swap=False, x_scales=None):
    """x (bf16 bits [m, k]) times the transpose of weight [n, k], plus bias f32 [n]: f32 [m, n].

    x_scales f32 [m, ceil(k/32)], or None for ones: what split_codes() leaves outside of x.
    swap exchanges the two elements of every pair, which the contract forbids: a corpus whose
    results do not change with it cannot see the order.
    """
    if weight.element not in _DECODE:
        raise ValueError(f"no such element: {weight.element}")
    x = bf16_to_f32(x)
    m, k = x.shape
    n = weight.codes.shape[0]
    if weight.codes.shape != (n, k):
        raise ValueError(f"x has {k} columns, the weight is {weight.codes.shape}")
    coded = weight.element != "bf16"
    unit = BLOCK * LANES if coded else BLOCK
    padded_k = _ceil_div(k, unit) * unit
    y = np.zeros((m, n), np.float32)
    with np.errstate(all="ignore"):
        x = _pad_to(x, 1, padded_k)
        if coded:
            x = np.where(np.abs(x) < ACTIVATION_FLUSH, np.float32(0), x)
            scales = _spread_scales(weight, n, k, padded_k)
            if x_scales is None:
                x_scales = np.ones((m, _ceil_div(k, BLOCK)), np.float32)
            x_scales = _pad_to(x_scales, 1, padded_k // BLOCK, np.float32(1))
        width = max(1, _STEP_CELLS // (LANES * max(m, 1)))
        for first in range(0, n, width):
            part = slice(first, min(n, first + width))
            w = _pad_to(_DECODE[weight.element](weight.codes[part]), 1, padded_k)
            if coded:
                lanes = _lanes_of_codes(x, w, scales[part], x_scales, weight.element, swap)
            else:
                lanes = _lanes_of_bf16(x, w, swap)
            y[:, part] = _tree(lanes)
        if bias is not None:
            y = y + np.asarray(bias, np.float32)[None, :]
    return store_f32(y)
