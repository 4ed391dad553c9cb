"""The module's own text as a client of the C interface.

The text is not part of this repository: the environment variable DEEPINFER_MODULE_TEXT names the file.
It is executed unchanged, with stand-ins for what it imports: its kernels are those of our C interface
on CPU tensors. Its check of the device is met by a subclass of torch.Tensor whose device says "neuron".
Every function must give the bits of our function of that name, called through ctypes as well.
"""

import os
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from c_abi import NO_GROUP, Library

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "DEEPINFER_MODULE_TEXT"
KERNELS = ["fp8_linear", "fp8_linear_raw", "fp4_linear"]
KERNELS += [f"{name}_2core" for name in KERNELS] + ["fp4_linear_2core_gated"]
M = 5
SHAPES = [(256, 256), (96, 128)]  # n, k: the first splits in two


class Neuron:
    """Stands for torch.device("neuron")."""

    type = "neuron"


class OnNeuron(torch.Tensor):
    """A CPU tensor that says it is on the device; results of its operations say so too."""

    device = property(lambda self: Neuron)

    def to(self, *arguments, **options):
        rest = [a for a in arguments if a is not Neuron]
        return super().to(*rest, **options) if rest or options else self


class Kernel:
    """A kernel as wrap_nki() returns it: called at grid 1, or at the grid that is its index."""

    def __init__(self, library, context, name, grid=1):
        self.library, self.context, self.name, self.grid = library, context, name, grid

    def __getitem__(self, grid):
        return Kernel(self.library, self.context, self.name, grid)

    def __call__(self, x, weight, scale, *flag):
        assert self.grid == (2 if "_2core" in self.name else 1)
        out = torch.full((128, weight.shape[0]), torch.nan, dtype=torch.bfloat16)  # rows are padded
        self.library.call(f"blockquant_{self.name}", self.context, x, weight, scale, *flag, out[: x.shape[0]])
        return out


def stand_ins(library, context):
    """The modules that the text imports."""

    def decode_data(a):
        out = torch.empty(a.shape, dtype=torch.float32)
        library.call("decode_data", a, out)
        return out

    def sf_to_scales(sfa, k):
        out = torch.empty(sfa.shape[0], k, dtype=torch.float32)
        library.call("sf_to_scales", sfa, k, out)
        return out

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        return made

    blockquant = module("blockquant", **{name: Kernel(library, context, name) for name in KERNELS})
    modules = [
        module("torch_neuronx"),
        module("torch_neuronx.nki_hop", wrap_nki=lambda kernel: kernel),
        module("deepinfer"),
        module("deepinfer.neuron_ops"),
        module("deepinfer.neuron_ops.nki", blockquant=blockquant),
        module("deep_gemm"),
        module("deep_gemm._quant", decode_data=decode_data, sf_to_scales=sf_to_scales),
    ]
    return {m.__name__: m for m in modules}


@pytest.fixture(scope="module")
def text():
    path = os.environ.get(VARIABLE)
    if not path:
        warnings.warn(f"{VARIABLE} is not set: the module's own text was not run as a client", stacklevel=1)
        pytest.skip(f"{VARIABLE} is not set")
    return compile(Path(path).read_text(), path, "exec")


@pytest.fixture(scope="module")
def library():
    return Library(ROOT / "build" / "libdeepinfer.so")


class Sides:
    """The text with its switches, and our context with the same."""

    def __init__(self, text, library, monkeypatch, enabled=True, two_core=True):
        self.library = library
        self.context = library.context(gemm=enabled, split2=two_core)
        monkeypatch.setenv("DEEPINFER_NEURON_NKI_GEMM", str(int(enabled)))
        monkeypatch.setenv("DEEPINFER_NEURON_BQ_2CORE", str(int(two_core)))
        for name, module in stand_ins(library, self.context).items():
            monkeypatch.setitem(sys.modules, name, module)
        self.text = types.ModuleType("module_text")
        exec(text, self.text.__dict__)

    def prepare(self, weight):
        """The weight, prepared by the text; and our handle of it."""
        model = torch.nn.ParameterList([weight])
        assert self.text.prepare_model(model) == 1
        return self.library.made("weight_prepare", weight, weight.sf, None)

    def ours(self, name, *arguments, m, n, dtype=torch.bfloat16):
        y = torch.full((m, n), torch.nan, dtype=dtype)
        self.library.call(name, self.context, *arguments, y)
        return y


@pytest.fixture(params=[True, False], ids=["two_core", "one_core"])
def sides(request, text, library, monkeypatch):
    return Sides(text, library, monkeypatch, two_core=request.param)


def random_bytes(*shape, low=0, high=256):
    return torch.randint(low, high, shape, dtype=torch.int32).to(torch.uint8)


def fp8_codes(*shape):
    codes = random_bytes(*shape)
    return torch.where(codes & 0x7F == 0x7F, 0x38, codes).view(torch.float8_e4m3fn)  # no NaN


def make_weight(fp4, n, k, groups=None, sf_dtype=torch.int16):
    """A parameter with packed scales; those of fp8 are the same for 32 rows."""
    torch.manual_seed(n + k)
    stack = [] if groups is None else [groups]
    if fp4:
        codes = random_bytes(*stack, n, k // 2).view(torch.int8)
        scales = random_bytes(*stack, n, k // 32, low=120, high=132)
    else:
        codes = fp8_codes(*stack, n, k)
        scales = random_bytes(*stack, n // 32, k // 32, low=120, high=132).repeat_interleave(32, dim=-2)
    weight = torch.nn.Parameter(codes.as_subclass(OnNeuron), requires_grad=False)
    weight.sf = scales.view(sf_dtype).as_subclass(OnNeuron)
    return weight


def make_activations(k, m=M):
    a = fp8_codes(m, k).as_subclass(OnNeuron)
    return a, random_bytes(m, k // 32, low=118, high=134).view(torch.int16)


def make_x(k, m=M):
    return torch.randn(m, k).mul(torch.exp2(torch.randint(-6, 7, (m, k)))).to(torch.bfloat16)


def same_bits(a, b):
    a, b = a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


WEIGHTS = [(fp4, n, k, groups) for fp4 in (False, True) for n, k in SHAPES for groups in (None, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fp4, n, k, groups", WEIGHTS)
def test_gemm(sides, fp4, n, k, groups, dtype):
    weight = make_weight(fp4, n, k, groups)
    handle = sides.prepare(weight)
    a, sfa = make_activations(k)
    for group in [None] if groups is None else range(groups):
        d = torch.empty(M, n, dtype=dtype)
        sides.text.gemm(a, sfa, weight, d, group)
        ours = NO_GROUP if group is None else group
        assert same_bits(d, sides.ours("gemm", a, sfa, 32, handle, ours, m=M, n=n, dtype=dtype))
        assert d.isfinite().all() and d.unique().numel() > n  # the comparison is not of nothing


@pytest.mark.parametrize("fp4, n, k, groups", WEIGHTS)
def test_linear_qdq(sides, fp4, n, k, groups):
    weight = make_weight(fp4, n, k, groups)
    handle = sides.prepare(weight)
    x = make_x(k)
    for group in [None] if groups is None else range(groups):
        ours = NO_GROUP if group is None else group
        y = sides.text.linear_qdq(x, weight, group)
        assert same_bits(y, sides.ours("linear_qdq", x, handle, ours, m=M, n=n))


@pytest.mark.parametrize("n, k", SHAPES)
def test_linear_qdq_raw(sides, n, k):
    weight = make_weight(False, n, k)
    sides.prepare(weight)
    x = make_x(k)
    rows = slice(32, n)  # a rank's slice
    codes, scale = weight._nki_weight[rows], weight._nki_scale[1:]
    y = sides.text.linear_qdq_raw(x, codes, scale)
    assert same_bits(y, sides.ours("linear_qdq_raw", x, codes, scale, b"fp8-32x32", 0, 0, m=M, n=n - 32))


@pytest.mark.parametrize("fp4, n, k", [(fp4, n, k) for fp4 in (False, True) for n, k in SHAPES])
def test_linear_qdq_gated(sides, fp4, n, k):
    weight = make_weight(fp4, n, k, groups=3)
    handle = sides.prepare(weight)
    x = make_x(k)
    applies = sides.library.answer("fits_module_gated", sides.context, handle)
    assert applies == int(fp4 and n == 256 and sides.text.TWO_CORE)
    for value in (0, 1, 2):
        flag = torch.tensor([[value]], dtype=torch.int32)
        y = sides.text.linear_qdq_gated(x, weight, 2, flag)
        ours = sides.ours("linear_qdq_gated", x, handle, 2, flag, m=M, n=n)
        assert (y is not None) == bool(applies)
        assert y is None or same_bits(y, ours)
        assert bool(ours.any()) == (value == 1)


def test_prepare_model_and_has_kernel(sides):
    uneven = make_weight(False, 64, 128)
    uneven.sf[5, 0] += 1
    unscaled = torch.nn.Parameter(fp8_codes(32, 32).as_subclass(OnNeuron), requires_grad=False)
    weights = {
        "fp8": make_weight(False, 96, 128),
        "stacked": make_weight(False, 64, 128, groups=2),
        "experts": make_weight(True, 64, 128, groups=2),
        "uneven": uneven,
        "unscaled": unscaled,
        "bf16": torch.nn.Parameter(make_x(64).as_subclass(OnNeuron)),
    }
    count = sides.text.prepare_model(torch.nn.ParameterDict(weights))
    named = {name: (w, w.sf) for name, w in weights.items() if hasattr(w, "sf")}
    model = sides.library.prepare_model(sides.context, named)
    assert count == 3
    assert sides.library.answer("model_count", model) == count
    for name, weight in weights.items():
        handle = sides.library.made("model_find", model, name.encode())
        assert sides.library.answer("has_kernel", sides.context, handle) == sides.text.has_kernel(weight)
        assert sides.text.has_kernel(weight) == (name in ("fp8", "stacked", "experts"))
    assert not sides.text.has_kernel(None)


def test_switched_off(text, library, monkeypatch):
    weight = make_weight(False, 96, 128)
    handle = Sides(text, library, monkeypatch).prepare(weight)
    sides = Sides(text, library, monkeypatch, enabled=False)
    a, sfa = make_activations(128)
    assert sides.text.prepare_model(torch.nn.ParameterList([make_weight(False, 96, 128)])) == 0
    model = library.prepare_model(sides.context, {"w": (weight, weight.sf)})
    assert library.answer("model_count", model) == 0
    assert not sides.text.has_kernel(weight)
    assert library.answer("has_kernel", sides.context, handle) == 0
    assert not sides.text.supported(a, weight, 128, 96)
    assert library.answer("supported", sides.context, a, sfa, 32, handle, 128, 96) == 0


def test_supported(sides):
    for n, k in [(256, 256), (96, 128), (64, 64), (32, 192)]:
        weight = make_weight(False, n, k)
        a, sfa = make_activations(k)
        assert not sides.text.supported(a, weight, k, n)  # not prepared yet
        assert sides.library.answer("supported", sides.context, a, sfa, 32, None, k, n) == 0
        handle = sides.prepare(weight)
        ours = sides.library.answer("supported", sides.context, a, sfa, 32, handle, k, n)
        gate = sides.library.c.deepinfer_fits_module_gate(k, n)
        assert ours == 1  # any n, any k
        assert sides.text.supported(a, weight, k, n) == (gate == 1) == (k % 128 == 0)


def test_kernels_split_as_ours(sides):
    for n in (96, 256, 320, 512):
        name = sides.text._linear_kernel("fp8_linear", n).name
        assert name.endswith("_2core") == sides.library.answer("splits_in_two", sides.context, n)


@pytest.mark.parametrize("sf_dtype", [torch.int16, torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize("fp4, n, k, groups", WEIGHTS)
def test_kernel_scale(sides, fp4, n, k, groups, sf_dtype):
    weight = make_weight(fp4, n, k, groups, sf_dtype)
    sf = weight.sf.as_subclass(torch.Tensor)
    both = [side(weight.data, sf) for side in (sides.text._kernel_scale, sides.library.kernel_scale)]
    assert same_bits(*both)
    wide = torch.cat([sf.view(torch.uint8), torch.zeros_like(sf.view(torch.uint8))], dim=-1)  # padding
    assert same_bits(sides.text._kernel_scale(weight.data, wide), both[0])
    assert same_bits(sides.library.kernel_scale(weight.data, wide), both[0])

    uneven = sf.view(torch.uint8).clone()
    uneven[..., 7, 1] += 1
    theirs, ours = sides.text._kernel_scale(weight.data, uneven), sides.library.kernel_scale(weight.data, uneven)
    assert (theirs is None) == (ours is None) == (not fp4)
    if fp4:
        assert same_bits(theirs, ours)
    grid = sf.view(torch.uint8)[..., ::32, :].contiguous()  # where rows are expected
    if not fp4:
        assert sides.text._kernel_scale(weight.data, grid) is None
    assert sides.library.kernel_scale(weight.data, grid) is None
