#!/usr/bin/env python3
"""Goldens of checkpoints that other tools quantized: one small linear a case, as its tool stores it, and its values in float32.

    foreign_quantization.py --out tests/data/formats

compressed-tensors' files are made and read back by the package of that name (its PackedQuantizationCompressor and so on);
fp8 blocks are read back by transformers. AWQ and GPTQ are a numpy statement of their published rules (AutoAWQ's WQLinear_GEMM,
AutoGPTQ's QuantLinear), checked here by packing and unpacking with independent code.

Writes OUT/foreign.json (the cases with their quantization_config) and OUT/foreign.safetensors
("<case>/p.<suffix>" as stored, "<case>/expected": every third row).
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from compressed_tensors.compressors import (FloatQuantizationCompressor, IntQuantizationCompressor, MXFP4PackedCompressor,
                                            NVFP4PackedCompressor, PackedQuantizationCompressor)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

RNG = np.random.default_rng(7)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: nibble i of a word holds column order[i]


def codes(bits, *shape):
    return RNG.integers(0, 1 << bits, shape, dtype=np.int64)


def scales(dtype, *shape):
    return torch.tensor(RNG.uniform(-1, 1, shape) / 16).to(dtype)


def words(values, bits, order=None):
    """Packs the last axis into int32 words; nibble i of a word holds element order[i]."""
    per = 32 // bits
    parts = values.reshape(*values.shape[:-1], -1, per)
    out = np.zeros(parts.shape[:-1], np.uint64)
    for i in range(per):
        out |= parts[..., order[i] if order else i].astype(np.uint64) << np.uint64(bits * i)
    return torch.tensor(out.astype(np.uint32).view(np.int32))


def awq(rows, cols, group, dtype=torch.float16):
    group = cols if group == -1 else group
    q, z, s = codes(4, cols, rows), codes(4, cols // group, rows), scales(dtype, cols // group, rows)
    z[0, :8] = [0, 15, 8, 7, 1, 14, 0, 15]
    repeat = lambda a: np.repeat(a, group, axis=0)
    expected = (q - repeat(z)).astype(np.float32) * repeat(s.float().numpy())
    stored = {"qweight": words(q, 4, AWQ_ORDER), "qzeros": words(z, 4, AWQ_ORDER), "scales": s}
    return stored, torch.tensor(expected.T.copy())


def gptq(rows, cols, bits, group, version=1, sym=False, with_index=True):
    group = cols if group == -1 else group
    groups = cols // group
    q, s = codes(bits, cols, rows), scales(torch.float16, groups, rows)
    stored_zero = codes(bits, groups, rows)
    if sym:
        stored_zero[:] = (1 << (bits - 1)) - (1 if version == 1 else 0)
    else:
        stored_zero[0, :4] = [0, (1 << bits) - 1, 0, (1 << bits) - 1]
    zero = stored_zero + (1 if version == 1 else 0)
    repeat = lambda a: np.repeat(a, group, axis=0)
    expected = repeat(s.float().numpy()) * (q - repeat(zero)).astype(np.float32)
    stored = {"qweight": words(q.T.copy(), bits).T.contiguous(), "qzeros": words(stored_zero, bits), "scales": s}
    if with_index:
        stored["g_idx"] = torch.arange(cols, dtype=torch.int32) // group
    return stored, torch.tensor(expected.T.copy())


def scheme(**weights):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def compressed(compressor, rows, cols, args, dtype=torch.bfloat16):
    """A random weight through a compressor of the package and back."""
    s = scheme(**args)
    groups = cols // args["group_size"] if args["strategy"] in ("group", "tensor_group") else 1
    bits = args["num_bits"]
    weight = torch.tensor(RNG.standard_normal((rows, cols)), dtype=torch.float32)
    state = {"weight": weight.to(dtype)}
    if args["strategy"] == "tensor":
        state["weight_scale"] = torch.tensor([0.02], dtype=dtype)
    elif args["strategy"] == "block":
        r, c = args["block_structure"]
        state["weight_scale"] = torch.tensor(RNG.uniform(0.005, 0.02, (-(-rows // r), -(-cols // c)))).to(dtype)
    else:
        state["weight_scale"] = torch.tensor(RNG.uniform(0.5, 1, (rows, groups)) * 6 / (1 << bits)).to(dtype)
    if args.get("type", "int") == "int" and not args["symmetric"]:
        state["weight_zero_point"] = torch.tensor(RNG.integers(-(1 << (bits - 1)), 1 << (bits - 1), (rows, groups)), dtype=torch.int8)
    elif args.get("type", "int") == "int":
        state["weight_zero_point"] = torch.zeros((rows, groups), dtype=torch.int8)
    stored = compressor.compress(dict(state), s)
    wide = {k: v.float() if k in ("weight_scale",) and v.dtype in (torch.float16, torch.bfloat16) else v for k, v in stored.items()}
    expected = compressor.decompress(wide, s)["weight"].float()
    stored.pop("weight_zero_point", None) if args.get("type", "int") == "int" and args["symmetric"] else None
    return {k: v.contiguous() for k, v in stored.items()}, expected.contiguous()


def section(compressor_format, args, ignore=("lm_head",)):
    return {"quant_method": "compressed-tensors", "format": compressor_format, "ignore": list(ignore), "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": args, "input_activations": None, "output_activations": None}}}


def fp8_block(rows, cols, block, dtype=torch.float32):
    w = torch.tensor(RNG.uniform(-400, 400, (rows, cols)), dtype=torch.float32).to(torch.float8_e4m3fn)
    s = torch.tensor(RNG.uniform(1e-4, 3e-4, (-(-rows // block), -(-cols // block)))).to(dtype)
    wide = s.float().repeat_interleave(block, 0).repeat_interleave(block, 1)[:rows, :cols]
    expected = w.float() * wide
    if rows % block == 0 and cols % block == 0:
        theirs = Fp8Dequantize(None)._dequantize_one(w, s.float(), torch.float32)
        assert torch.equal(theirs, expected)
    return {"weight": w, "weight_scale_inv": s}, expected


def e2m1(packed):
    table = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    q = packed.numpy()
    return torch.tensor(np.stack([table[q & 15], table[q >> 4]], -1).reshape(q.shape[0], -1))


def nvfp4_compressed(rows, cols, global_scale):
    """The package computes in bf16: its values are the rule's within that."""
    s = scheme(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    e4m3 = torch.tensor(RNG.uniform(20, 300, (rows, cols // 16))).to(torch.float8_e4m3fn)
    state = {"weight": torch.tensor(RNG.standard_normal((rows, cols)), dtype=torch.float32), "weight_scale": e4m3.float(),
             "weight_global_scale": torch.tensor([global_scale])}
    stored = NVFP4PackedCompressor.compress(dict(state), s)
    assert torch.equal(stored["weight_scale"].float(), e4m3.float())
    expected = e2m1(stored["weight_packed"]) * e4m3.float().repeat_interleave(16, 1) / global_scale
    theirs = NVFP4PackedCompressor.decompress(dict(stored), s)["weight"].float()
    assert torch.allclose(theirs, expected, rtol=0.02)
    return stored, expected


def nvfp4_modelopt(rows, cols):
    packed = torch.tensor(RNG.integers(0, 256, (rows, cols // 2)), dtype=torch.uint8)
    s = torch.tensor(RNG.uniform(20, 300, (rows, cols // 16))).to(torch.float8_e4m3fn)
    scale2 = torch.tensor(0.0123)
    expected = e2m1(packed) * s.float().repeat_interleave(16, 1) * scale2
    return {"weight": packed, "weight_scale": s, "weight_scale_2": scale2, "input_scale": torch.tensor(0.5)}, expected


def make_cases():
    out = {}

    def add(name, config, made, exact=True):
        stored, expected = made
        out[name] = ({"config": config, "exact": exact, "shape": list(expected.shape)}, stored, expected)

    for group in (32, 128, -1):
        add(f"awq-{group}", dict(quant_method="awq", bits=4, group_size=group, version="gemm", zero_point=True), awq(24, 256, group))
    for bits in (2, 4, 8):
        config = dict(quant_method="gptq", bits=bits, group_size=64, desc_act=False, sym=False, checkpoint_format="gptq")
        add(f"gptq-{bits}", config, gptq(48, 128, bits, 64))
    add("gptq-v2-32", dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
        gptq(16, 96, 4, 32, version=2, with_index=False))
    add("gptq-sym-128", dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True), gptq(16, 256, 4, 128, sym=True))
    add("gptq-channel", dict(quant_method="gptq", bits=8, group_size=-1, desc_act=True, sym=True), gptq(12, 192, 8, -1, sym=True))

    args = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    add("ct-pack-4-sym", section("pack-quantized", args), compressed(PackedQuantizationCompressor, 36, 128, args))
    args = dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=128)
    add("ct-pack-4-asym", section("pack-quantized", args), compressed(PackedQuantizationCompressor, 36, 256, args))
    args = dict(num_bits=8, type="int", symmetric=False, strategy="channel")
    add("ct-pack-8-channel", section("pack-quantized", args), compressed(PackedQuantizationCompressor, 10, 160, args))
    args = dict(num_bits=4, type="int", symmetric=True, strategy="channel")
    add("ct-pack-4-channel", section("pack-quantized", args), compressed(PackedQuantizationCompressor, 10, 96, args, torch.float16))
    args = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
    add("ct-int8-channel", section("int-quantized", args), compressed(IntQuantizationCompressor, 20, 128, args))
    args = dict(num_bits=8, type="int", symmetric=False, strategy="channel")
    add("ct-int8-asym", section("int-quantized", args), compressed(IntQuantizationCompressor, 20, 64, args))
    args = dict(num_bits=8, type="int", symmetric=True, strategy="tensor")
    made = compressed(IntQuantizationCompressor, 20, 64, args)
    add("ct-int8-tensor", section("int-quantized", args), made)
    for strategy in ("channel", "tensor", "block"):
        args = dict(num_bits=8, type="float", symmetric=True, strategy=strategy)
        if strategy == "block":
            args["block_structure"] = [32, 64]
        add(f"ct-fp8-{strategy}", section("float-quantized", args), compressed(FloatQuantizationCompressor, 64, 128, args))
    args = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    add("ct-nvfp4", section("nvfp4-pack-quantized", args), nvfp4_compressed(12, 64, 900.0), exact=False)

    packed = torch.tensor(RNG.integers(0, 256, (12, 48)), dtype=torch.uint8)
    exponents = torch.tensor(RNG.integers(115, 127, (12, 3)), dtype=torch.uint8)
    args = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype=torch.uint8)
    expected = MXFP4PackedCompressor.decompress({"weight_packed": packed, "weight_scale": exponents}, scheme(**args))["weight"].float()
    args["scale_dtype"] = "torch.uint8"
    add("ct-mxfp4", section("mxfp4-pack-quantized", args), ({"weight_packed": packed, "weight_scale": exponents}, expected))

    add("fp8-blocks", dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]), fp8_block(128, 256, 128))
    add("fp8-blocks-tail", dict(quant_method="fp8", weight_block_size=[128, 128]), fp8_block(40, 160, 128))
    add("fp8-blocks-small", dict(quant_method="fp8", weight_block_size=[32, 32]), fp8_block(64, 96, 32, torch.bfloat16))
    stored, expected = fp8_block(16, 64, 64)
    stored = {"weight": stored["weight"], "weight_scale_inv": stored["weight_scale_inv"][0, 0].clone(), "activation_scale": torch.tensor(1.0)}
    add("fp8-tensor", dict(quant_method="fp8", activation_scheme="static"), (stored, expected))
    add("modelopt-nvfp4", dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head"]), nvfp4_modelopt(12, 64), exact=False)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    cases, tensors = {}, {}
    for name, (case, stored, expected) in make_cases().items():
        cases[name] = case
        for suffix, tensor in stored.items():
            tensors[f"{name}/p.{suffix}"] = tensor.contiguous()
        tensors[f"{name}/expected"] = expected.float()[::3].contiguous()
    (arguments.out / "foreign.json").write_text(json.dumps(cases, indent=1) + "\n")
    save_file(tensors, arguments.out / "foreign.safetensors")


if __name__ == "__main__":
    main()
