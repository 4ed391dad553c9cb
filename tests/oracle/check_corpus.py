#!/usr/bin/env python3
"""Recompute the corpora that the C++ library writes and compare every output bit for bit.

    check_corpus.py FILE...

A file is one line of JSON (UTF-8, ended by a newline) and then its arrays, little-endian, back
to back in the order of the header:

    {"format": "...", "contract": 1,
     "arrays": [{"name": "x", "dtype": "f32", "shape": [m, k]}, ...],
     "element": "e4m3fn" | "e2m1" | "bf16", "block_n": 1, "block_k": 32,
     "scale": "none" | "e8m0" | "f32", "quantize": 0 | 224 | 448}

    x       f32 [m, k]; with "quantize" 0 every value is a bf16 value and is used as it is,
            otherwise x is quantized first, with that limit
    codes   u8 [n, k] (e4m3fn), u8 [n, k/2] packed (e2m1) or u16 [n, k] (bf16)
    scales  u8 (e8m0) or f32 [ceil(n/block_n), ceil(k/block_k)]; absent with "none"
    bias    f32 [n], optional
    y       u32 [m, n], the bits of the library's f32 results

Instead of x there may be activations that are quantized already, and "x_block_k", 32 or 128:

    x_codes   u8 [m, k], e4m3fn
    x_scales  u8 (e8m0) or f32 [m, ceil(k/x_block_k)]; with "quantize" 224 (e2m1 weights) their
              values are rounded to bf16 and quantized again

Exit status: 0 when everything agrees; 1 when an output differs, or when the files of an element
contain not one output that changes once the two elements of every pair are swapped (such a
corpus could not tell a wrong order); 2 when a file cannot be understood.
"""

import json
import math
import os
import sys

import numpy as np

import numerics

DTYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "f32": "<f4"}
CODES_DTYPE = {"e4m3fn": "u8", "e2m1": "u8", "bf16": "u16"}
SCALES_DTYPE = {"e8m0": "u8", "f32": "f32"}


class CorpusError(Exception):
    """The file is not a corpus of this contract."""


def _require(condition, message):
    if not condition:
        raise CorpusError(message)


def _arrays(header, data):
    """The arrays by name, with their dtype names."""
    arrays, dtypes, offset = {}, {}, 0
    for entry in header["arrays"]:
        name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
        _require(name not in arrays, f"array {name} appears twice")
        _require(dtype in DTYPES, f"array {name} has the dtype {dtype}")
        _require(all(type(s) is int and s >= 0 for s in shape), f"array {name} has a bad shape")
        count = math.prod(shape)
        size = count * np.dtype(DTYPES[dtype]).itemsize
        _require(offset + size <= len(data), f"array {name} is cut short")
        array = np.frombuffer(data, DTYPES[dtype], count, offset)
        # By bits, so that no NaN is touched on its way to the native byte order.
        arrays[name] = array.astype(np.dtype(DTYPES[dtype]).newbyteorder("=")).reshape(shape)
        dtypes[name] = dtype
        offset += size
    _require(offset == len(data), f"{len(data) - offset} bytes follow the last array")
    return arrays, dtypes


def parse(blob):
    """bytes of a corpus to (header, arrays); CorpusError where they do not fit the format."""
    line, newline, data = blob.partition(b"\n")
    _require(newline, "there is no header line")
    try:
        header = json.loads(line.decode("utf-8"))
        _require(header["contract"] == numerics.CONTRACT, f"contract {header['contract']}")
        arrays, dtypes = _arrays(header, data)
        element, scale, quantize = header["element"], header["scale"], header["quantize"]
        block_n, block_k = header["block_n"], header["block_k"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"bad header: {error!r}") from error

    # A misspelt optional array would otherwise be ignored and its absence computed.
    coded = "x_codes" in arrays
    rows = "x_codes" if coded else "x"
    known = {rows, "codes", "scales", "bias", "y"} | ({"x_scales"} if coded else set())
    _require(set(arrays) <= known, f"unknown arrays {sorted(set(arrays) - known)}")
    _require({rows, "codes", "y"} <= set(arrays), "x, codes or y is missing")
    _require(not coded or "x_scales" in arrays, "x_scales is missing")
    _require(element in CODES_DTYPE, f"element {element}")
    _require(quantize in (0, 224, 448), f"quantize {quantize}")
    _require(all(arrays[name].ndim == 2 for name in (rows, "codes", "y")), "x, codes, y are 2-D")
    wanted = {"x": "f32", "x_codes": "u8", "codes": CODES_DTYPE[element], "bias": "f32", "y": "u32"}
    if element == "bf16":
        _require(scale == "none", "a bf16 weight has no scales")
    else:
        _require(scale in SCALES_DTYPE, f"scale {scale}")
        wanted["scales"] = SCALES_DTYPE[scale]
    _require(("scales" in arrays) == ("scales" in wanted), "scales and \"scale\" disagree")
    if coded:
        _require(dtypes["x_scales"] in ("u8", "f32"), "x_scales are u8 or f32")
        _require(header.get("x_block_k") in (32, 128), "x_block_k is 32 or 128")
        _require(quantize == (224 if element == "e2m1" else 0), "only e2m1 quantizes codes again")
        _require(element != "bf16", "a bf16 weight takes no codes")
        wanted["x_scales"] = dtypes["x_scales"]
    for name, dtype in dtypes.items():
        _require(dtype == wanted[name], f"{name} is {dtype}, not {wanted[name]}")

    (m, k), n = arrays[rows].shape, arrays["codes"].shape[0]
    shapes = {"codes": (n, k), "y": (m, n), "bias": (n,)}
    if element == "e2m1":
        _require(k % 2 == 0, "e2m1 has even k")
        shapes["codes"] = (n, k // 2)
    if "scales" in arrays:
        _require(all(type(b) is int for b in (block_n, block_k)), "a block is not an integer")
        _require(block_n >= 1 and block_k >= 32 and block_k % 32 == 0,
                 f"blocks of {block_n} x {block_k}")
        shapes["scales"] = (-(-n // block_n), -(-k // block_k))
    if coded:
        shapes["x_scales"] = (m, -(-k // header["x_block_k"]))
    for name, shape in shapes.items():
        _require(name not in arrays or arrays[name].shape == shape,
                 f"{name} is not {list(shape)}")
    if quantize == 0 and not coded:
        _require(not np.any(numerics.f32_bits(arrays["x"]) & np.uint32(0xFFFF)),
                 "x holds values that are not bf16")
    return header, arrays


def _rows(header, arrays):
    """x as bf16 bits, and the scales that are not in it, if there are any."""
    if "x_codes" in arrays:
        scales = arrays["x_scales"]
        if scales.dtype == np.uint8:
            scales = numerics.decode_e8m0(scales)
        split = numerics.requantize_codes if header["quantize"] else numerics.split_codes
        rows = split(arrays["x_codes"], scales, header["x_block_k"])
        return (rows, None) if header["quantize"] else rows
    x = arrays["x"]
    if header["quantize"]:
        return numerics.quantize_activations(x, header["quantize"])[2], None
    return (numerics.f32_bits(x) >> np.uint32(16)).astype(np.uint16), None


def recompute(header, arrays, swap=False):
    """The bits, u32 [m, n], that the contract gives for this corpus."""
    x, x_scales = _rows(header, arrays)
    codes, scales = arrays["codes"], arrays.get("scales")
    if header["element"] == "e2m1":
        codes = numerics.unpack_e2m1(codes)
    if header["scale"] == "e8m0":
        scales = numerics.decode_e8m0(scales)
    weight = numerics.Weight(header["element"], codes, scales,
                             header["block_n"], header["block_k"])
    return numerics.f32_bits(numerics.gemm(x, weight, arrays.get("bias"), swap, x_scales))


def main(paths):
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    status = 0
    seen = {}  # element -> outputs that change when the pairs are swapped
    for path in paths:
        name = os.path.basename(path)
        try:
            with open(path, "rb") as file:
                header, arrays = parse(file.read())
        except (OSError, CorpusError) as error:
            print(f"{name}: {error}")
            return 2
        y = arrays["y"]
        expected = recompute(header, arrays)
        different = np.argwhere(y != expected)
        print(f"{name}: {y.size} outputs, {len(different)} different")
        if len(different):
            row, column = (int(v) for v in different[0])
            print(f"  first at row {row}, column {column}: the file has "
                  f"0x{int(y[row, column]):08X}, the contract gives "
                  f"0x{int(expected[row, column]):08X}")
            status = 1
        swapped = int(np.count_nonzero(recompute(header, arrays, swap=True) != expected))
        print(f"  {swapped} outputs change when the pairs are swapped")
        element = header["element"]
        seen[element] = seen.get(element, 0) + swapped
    # Per element and not per file: sums of quantized x are often exact, and a file of those may
    # stand beside one that sees the order.
    for element, swapped in seen.items():
        if not swapped:
            print(f"{element}: no output depends on the order of a pair")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
