#!/usr/bin/env python3
"""Goldens of storage formats, from the gguf package and from MLX on the CPU.

Usage: formats_goldens.py OUT_FOLDER      (tests/data/formats; deterministic)

gguf_blocks.safetensors: per type T.bytes U8 [blocks, block bytes] (random codes and finite random scales) and T.values F32.
gguf_encode.safetensors: x F32 [4, 256] and T.bytes of its rows encoded.
mlx_modes.safetensors: w F32 [2, 256]; per mode M.{weight, scales, biases} as mx.quantize gives them and M.values, the f32 values
(scales and biases widened, product and sum rounded in f32; with f32 scales this is asserted to be mx.dequantize's result).
"""
import sys

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.numpy import save_file

OUT = sys.argv[1]
rng = np.random.default_rng(20240601)

# Byte offsets of f16 fields, which must not hold NaN or infinity.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.IQ4_NL: [0], T.MXFP4: [], T.NVFP4: [],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64],
    T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ1_S: [0], T.IQ1_M: [],
}


def blocks_of(kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = 4 if elements >= 64 else 8
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    data[0] = 0
    data[1] = 0xFF
    for row in range(count):
        for at in HALVES[kind]:
            # Both signs, subnormals and large values; exponent 31 is NaN or infinity.
            bits = int(rng.integers(0, 1 << 16))
            if row == 0:
                bits = 0
            if row == 1:
                bits = 0xFBFF if at == HALVES[kind][0] else 0x7BFF
            if bits & 0x7C00 == 0x7C00:
                bits &= ~0x4000
            data[row, at] = bits & 255
            data[row, at + 1] = bits >> 8
        if kind == T.IQ1_M:
            for k in range(4):
                nibble = int(rng.integers(0, 16)) if row > 1 else 0
                if k == 3:
                    nibble &= 0xB  # exponent below 31
                data[row, 49 + 2 * k] = (data[row, 49 + 2 * k] & 15) | nibble << 4
        if kind == T.MXFP4 and data[row, 0] > 250:  # 12 * 2^126 overflows
            data[row, 0] = 250
        if kind == T.NVFP4:
            data[row, :4] &= 0x7F  # ggml ignores bit 7, the gguf package does not
    return data


out = {}
for kind in HALVES:
    data = blocks_of(kind)
    out[f"{kind.name.lower()}.bytes"] = data
    out[f"{kind.name.lower()}.values"] = quants.dequantize(data, kind).astype(np.float32)
    assert np.isfinite(out[f"{kind.name.lower()}.values"]).all(), kind
save_file(out, f"{OUT}/gguf_blocks.safetensors")

x = rng.standard_normal((4, 256)).astype(np.float32)
x[1] *= np.float32(1e-3)
x[2, :64] = 0
x[2, 64:96] = 0.75
x[3] = np.round(x[3] * 4) / 4
out = {"x": x}
for kind in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4, T.F16, T.BF16):
    out[f"{kind.name.lower()}.bytes"] = np.ascontiguousarray(quants.quantize(x, kind)).view(np.uint8)
save_file(out, f"{OUT}/gguf_encode.safetensors")

mx.set_default_device(mx.cpu)
w = rng.standard_normal((2, 256)).astype(np.float32) * np.float32(0.05)
w[1, 0:32] = -np.abs(w[1, 0:32])
w[1, 32:64] = 0
w[1, 64:96] = np.float32(0.3)
w[1, 128:192] = np.abs(w[1, 128:192])
out = {"w": w}


def to_numpy(array):
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16))  # stored as U16: NumPy has no bfloat16
    return np.array(array)


def widened(array):
    return np.array(array.astype(mx.float32))


def unpack(words, bits):
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8).reshape(words.shape[0], -1), axis=-1, bitorder="little")
    stream = stream.reshape(words.shape[0], -1, bits).astype(np.uint32)
    return (stream << np.arange(bits, dtype=np.uint32)).sum(-1)


for bits in (2, 3, 4, 5, 6, 8):
    for group, dtype in ((32, mx.float32), (64, mx.float32), (128, mx.float32), (64, mx.bfloat16), (32, mx.float16)):
        name = f"affine_b{bits}_g{group}_{ {mx.float32: 'f32', mx.bfloat16: 'bf16', mx.float16: 'f16'}[dtype] }"
        source = mx.array(w).astype(dtype)
        weight, scales, biases = mx.quantize(source, group_size=group, bits=bits)
        codes = unpack(np.array(weight), bits).astype(np.float32)
        s, b = (np.repeat(widened(v), group, axis=-1) for v in (scales, biases))
        values = (codes * s).astype(np.float32) + b
        if dtype == mx.float32:
            assert (values == np.array(mx.dequantize(weight, scales, biases, group_size=group, bits=bits))).all(), name
        out |= {f"{name}.weight": np.array(weight), f"{name}.scales": to_numpy(scales), f"{name}.biases": to_numpy(biases),
                f"{name}.values": values}
for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
    weight, scales = mx.quantize(mx.array(w), group_size=group, bits=bits, mode=mode)
    values = np.array(mx.dequantize(weight, scales, group_size=group, bits=bits, mode=mode, dtype=mx.float32))
    out |= {f"{mode}.weight": np.array(weight), f"{mode}.scales": np.array(scales), f"{mode}.values": values}
save_file(out, f"{OUT}/mlx_modes.safetensors")
