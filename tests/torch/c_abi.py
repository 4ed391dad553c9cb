"""The C interface (include/deepinfer/deepinfer.h) through ctypes, on torch's CPU tensors."""

import ctypes

import torch

NO_GROUP = -(2**63)
DTYPES = {
    torch.bfloat16: 1,
    torch.float32: 2,
    torch.float8_e4m3fn: 3,
    torch.int8: 4,  # pairs of e2m1
    torch.float8_e8m0fnu: 5,
    torch.uint8: 6,
    torch.int16: 7,
    torch.int32: 8,
}


class Refused(Exception):
    """What deepinfer_last_error() says."""


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Tensor(Sized):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
    ]

    def __init__(self, tensor):
        if 0 in tensor.stride():
            raise ValueError("expanded tensors have a stride of 0, which means dense in C")
        super().__init__(data=tensor.data_ptr(), dtype=DTYPES[tensor.dtype], rank=tensor.dim())
        self.shape[: tensor.dim()] = tensor.shape
        self.stride[: tensor.dim()] = tensor.stride()


class ContextOptions(Sized):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_threads", ctypes.c_int32),
        ("gemm", ctypes.c_int32),
        ("split2", ctypes.c_int32),
        ("isa", ctypes.c_char_p),
        ("executor", ctypes.c_void_p),
    ]


class KernelScaleInfo(Sized):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("fits", ctypes.c_int32),
        ("groups", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    ]


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        self.c.deepinfer_last_error.restype = ctypes.c_char_p
        for name in ("weight_destroy", "model_destroy", "context_destroy"):
            getattr(self.c, f"deepinfer_{name}").restype = None

    def call(self, name, *arguments):
        """deepinfer_<name>() with torch tensors as they are; every whole number is 64 bits wide."""
        plain = [
            ctypes.byref(Tensor(a)) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) if isinstance(a, int) else a
            for a in arguments
        ]
        if getattr(self.c, f"deepinfer_{name}")(*plain) != 0:
            raise Refused(self.c.deepinfer_last_error().decode())

    def made(self, name, *arguments):
        """The handle that a function makes in its last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def answer(self, name, *arguments, kind=ctypes.c_int32):
        """The number that a function writes in its last argument."""
        number = kind(-1)
        self.call(name, *arguments, ctypes.byref(number))
        return number.value

    def context(self, gemm=True, split2=True, num_threads=2):
        options = ContextOptions(num_threads=num_threads, gemm=int(gemm), split2=int(split2))
        return self.made("context_create", ctypes.byref(options))

    def prepare_model(self, context, named):
        """named: {name: (codes, scales)}"""
        names = (ctypes.c_char_p * len(named))(*(name.encode() for name in named))
        columns = []
        for i in range(2):
            structs = [Tensor(pair[i]) for pair in named.values()]
            columns.append((ctypes.c_void_p * len(named))(*(ctypes.addressof(s) for s in structs)))
            columns.append(structs)  # kept alive until the call
        return self.made("prepare_model", context, names, columns[0], columns[2], len(named))

    def kernel_scale(self, codes, scales):
        """uint8 [groups, rows, columns] (no groups: [rows, columns]), or None."""
        info = KernelScaleInfo()
        self.call("kernel_scale", codes, scales, ctypes.byref(info), None, 0)
        if not info.fits:
            return None
        out = torch.zeros(info.groups, info.rows, info.columns, dtype=torch.uint8)
        self.call("kernel_scale", codes, scales, ctypes.byref(info), ctypes.c_void_p(out.data_ptr()), out.numel())
        return out if codes.dim() == 3 else out[0]
