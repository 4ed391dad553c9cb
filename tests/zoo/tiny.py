"""Writes tiny checkpoints, and knows the values that are in them.

A Tiny gathers tensors under their published names and data types; each method that adds a quantized
weight also computes its values, in numpy from the meaning of the format alone. The decoders are those
of the numeric contract's oracle; nothing is shared with the C++ sources.

Scales differ from block to block and codes are random over all finite ones, so that a block, a nibble
or a row that is read from the wrong place shows.
"""

import dataclasses
import json
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import numerics  # noqa: E402

BITS = {"F4": 4, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8, "BF16": 16, "F16": 16,
        "I32": 32, "F32": 32, "I64": 64}


def ceil_div(a, b):
    return -(-a // b)


@dataclasses.dataclass
class Expected:
    """A weight that must be read: values [groups, n, k] and the name of its format."""

    values: np.ndarray
    format: str
    cannot_run: str = ""
    gate_up: bool = False


class Tiny:
    def __init__(self, config, seed=1):
        self.config = config
        self.side_files = {}
        self.tensors = {}  # name -> (dtype, shape, bytes)
        self.expected = {}  # module -> Expected
        self.problems = {}  # tensor -> words that its reason must hold
        self.segments = None  # PATTERN=ROWS
        self.random = np.random.default_rng(seed)

    # Tensors -----------------------------------------------------------------------------------

    def add(self, name, dtype, array, shape=None):
        """A tensor with these bytes; of F4 the shape counts elements."""
        array = np.ascontiguousarray(array)
        shape = list(array.shape if shape is None else shape)
        assert array.nbytes * 8 == int(np.prod(shape, dtype=np.int64)) * BITS[dtype], name
        self.tensors[name] = (dtype, shape, array.tobytes())

    def plain(self, name, dtype, *shape):
        """A tensor that is no weight: norms, biases, tables of integers."""
        self.add(name, dtype, np.zeros((*shape, BITS[dtype] // 8), np.uint8), shape)

    def bf16(self, module, n, k):
        bits = (self.random.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self.add(module + ".weight", "BF16", bits)
        self.expected[module] = Expected(numerics.bf16_to_f32(bits)[None], "bf16")

    # Codes and scales --------------------------------------------------------------------------

    def e4m3(self, *shape):
        codes = self.random.integers(0, 256, shape, np.uint8)
        return np.where(codes & 0x7F == 0x7F, np.uint8(0x38), codes)  # NaN times 0 would spread

    def scales(self, dtype, shape):
        """Tensor array and multipliers f32 of this data type. Of I32: four e8m0 along k."""
        if dtype in ("F8_E8M0", "U8"):
            array = self.random.integers(100, 141, shape, np.uint8)
            return array, numerics.decode_e8m0(array)
        values = (self.random.random(shape) * 0.01 + 1e-4).astype(np.float32)
        if dtype == "F32":
            return values, values
        if dtype == "BF16":
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            return bits, numerics.bf16_to_f32(bits)
        assert dtype == "F16"
        return values.astype(np.float16), values.astype(np.float16).astype(np.float32)

    @staticmethod
    def spread(scales, block, n, k):
        """Scales [.., rows, columns] to one per element [.., n, k]."""
        rows = np.arange(n) // block[0]
        columns = np.arange(k) // block[1]
        return scales[..., rows[:, None], columns[None, :]]

    def fp8(self, module, n, k, block, dtype="F32", scale=".weight_scale_inv", groups=None, fmt=None):
        """Block-quantized fp8; `block` may be as large as the weight. groups: a stack."""
        lead = () if groups is None else (groups,)
        grid = (*lead, ceil_div(n, block[0]), ceil_div(k, block[1]))
        codes = self.e4m3(*lead, n, k)
        array, multipliers = self.scales(dtype, grid)
        self.add(module + ".weight", "F8_E4M3", codes)
        self.add(module + scale, dtype, array)
        values = numerics.decode_e4m3fn(codes) * self.spread(multipliers, block, n, k)
        self.expected[module] = Expected(values.reshape(-1, n, k), fmt or f"fp8-{block[0]}x{block[1]}")

    def fp8_tensor(self, module, n, k, dtype="F32", scale=".weight_scale", shape=(1,)):
        """One scale for the whole weight."""
        codes = self.e4m3(n, k)
        array, multiplier = self.scales(dtype, shape)
        self.add(module + ".weight", "F8_E4M3", codes)
        self.add(module + scale, dtype, array, shape)
        values = numerics.decode_e4m3fn(codes) * np.float32(multiplier.reshape(-1)[0])
        self.expected[module] = Expected(values[None], "fp8-tensor")

    def fp8_packed(self, module, n, k, gran_k, scale=".weight_scale_inv"):
        """DeepGEMM: a row of e8m0 scales for each row of the weight, four in an I32."""
        stored = 4 * ceil_div(ceil_div(k, gran_k), 4)  # padded to whole integers
        codes = self.e4m3(n, k)
        array, multipliers = self.scales("F8_E8M0", (n, stored))
        packed = sum(array[:, i::4].astype(np.uint32) << np.uint32(8 * i) for i in range(4))
        self.add(module + ".weight", "F8_E4M3", codes)
        self.add(module + scale, "I32", packed.astype("<u4"))
        values = numerics.decode_e4m3fn(codes) * self.spread(multipliers, (1, gran_k), n, k)
        fmt = "mxfp8" if gran_k == 32 else f"fp8-1x{gran_k}"
        self.expected[module] = Expected(values[None], fmt)

    def mxfp4(self, module, n, k, codes=".weight", container="I8", scale=".scale", dtype="F8_E8M0", groups=None):
        lead = () if groups is None else (groups,)
        nibbles = self.random.integers(0, 16, (*lead, n, k), np.uint8)
        packed = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
        array, multipliers = self.scales(dtype, (*lead, n, ceil_div(k, 32)))
        self.add(module + codes, container, packed, (*lead, n, k) if container == "F4" else None)
        self.add(module + scale, dtype, array)
        values = numerics.decode_e2m1(nibbles) * self.spread(multipliers, (1, 32), n, k)
        self.expected[module] = Expected(values.reshape(-1, n, k), "mxfp4")

    def mxfp4_blocks(self, module, groups, n, k, codes="_blocks", scale="_scales", gate_up=False):
        """gpt-oss: [E, n, k / 32, 16]."""
        self.mxfp4(module, n, k, codes, "U8", scale, "U8", groups)
        dtype, _, data = self.tensors[module + codes]
        self.tensors[module + codes] = (dtype, [groups, n, k // 32, 16], data)
        self.expected[module].gate_up = gate_up

    def nvfp4(self, module, n, k, codes, second, divides):
        nibbles = self.random.integers(0, 16, (n, k), np.uint8)
        scales = self.random.integers(0x20, 0x7F, (n, ceil_div(k, 16)), np.uint8)
        total = np.float32(self.random.random() * 100 + 1)
        self.add(module + codes, "U8", nibbles[:, 0::2] | (nibbles[:, 1::2] << 4))
        self.add(module + ".weight_scale", "F8_E4M3", scales)
        self.add(module + second, "F32", total, (1,) if divides else ())
        values = numerics.decode_e2m1(nibbles) * self.spread(numerics.decode_e4m3fn(scales), (1, 16), n, k)
        wide = values.astype(np.float64)
        values = (wide / total if divides else wide * total).astype(np.float32)
        self.expected[module] = Expected(values[None], "nvfp4", cannot_run="no kernel takes NVFP4")

    # Files -------------------------------------------------------------------------------------

    def write(self, folder, num_shards=1):
        """A folder as it is published; with several shards, neighbours by name lie in different ones."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.config is not None:
            (folder / "config.json").write_text(json.dumps(self.config))
        for name, content in self.side_files.items():
            (folder / name).write_text(json.dumps(content))
        names = sorted(self.tensors)
        shards = [names[i::num_shards] for i in range(num_shards)]
        files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
        if num_shards == 1:
            files = ["model.safetensors"]
        for file, shard in zip(files, shards):
            header, _ = header_of([(name, *self.tensors[name][:2]) for name in shard])
            with open(folder / file, "wb") as out:
                out.write(header)
                out.writelines(self.tensors[name][2] for name in shard)
        if num_shards > 1:
            weight_map = {name: file for file, shard in zip(files, shards) for name in shard}
            index = {"metadata": {}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def header_of(tensors):
    """Length field and header of a safetensors file whose data are these (name, dtype, shape), in order;
    and how many bytes the data are."""
    entries, at = {}, 0
    for name, dtype, shape in tensors:
        size = BITS[dtype]
        for side in shape:
            size *= side
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size // 8]}
        at += size // 8
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at
