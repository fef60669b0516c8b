#!/usr/bin/env python3
"""Goldens of MLX-quantized checkpoints of every mode: float32 logits of mlx-lm on the CPU.

    mlx_quantized.py --kvasir build/release/kvasir --out tests/data/models

`kvasir synth` writes a tiny llama in each mode (the same bytes for the same seed, so the test writes it again); mlx-lm loads it, MLX
de-quantizes every module in float32, and mlx-lm's graph runs in float32. "mixed" takes modules from three of them and has overrides of
each kind. "qwen3_moe-..." are tiny mixtures: stacks of experts, and routers whose override names no mode; what `synth` states in
config.json must be what mlx-lm's `quantize_model` states. Writes OUT/mlx.json (the cases) and OUT/mlx.safetensors (a tensor [tokens, columns] a case).
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models import qwen3_moe
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import load_model, quantize_model
from safetensors.numpy import save_file

MODES = [f"mlx-affine-{bits}-{group}" for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)] + ["mlx-mxfp4", "mlx-mxfp8", "mlx-nvfp4"]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2,
         "vocab_size": 64, "max_position_embeddings": 256}
MOE = "qwen3_moe"
MOE_MODES = ["mlx-affine-4-64", "mlx-mxfp4", "mlx-mxfp8", "mlx-nvfp4"]
MOE_SIZES = {**SIZES, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_only_layers": [], "decoder_sparse_step": 1,
             "norm_topk_prob": True, "tie_word_embeddings": False}
SEED, STEP = 3, 3
TOKENS = [(i * i * 7 + i * 13 + 5) % 64 for i in range(24)]
# Of "mixed": the mode whose tensors a module has, and what the configuration says of it.
MIXED = {"model.layers.0.self_attn.q_proj": ("f16", False), "model.layers.1.mlp.down_proj": ("mlx-affine-8-32", {"bits": 8, "group_size": 32}),
         "model.layers.1.self_attn.v_proj": ("mlx-mxfp4", {"mode": "mxfp4", "bits": 4, "group_size": 32}), "model.layers.0.mlp.up_proj": ("mlx-affine-4-64", True)}


def synthesize(kvasir, mode, out, family="llama", sizes=SIZES):
    sets = [argument for key, value in sizes.items() for argument in ("--set", f"{key}={json.dumps(value)}")]
    subprocess.run([kvasir, "synth", out, "--family", family, "--size", "tiny", "--format", mode, "--seed", str(SEED), *sets], check=True,
                   capture_output=True)


def logits(folder):
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder, lazy=False)
    plain = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)):
            continue
        biases = module.get("biases")
        affine = module.mode == "affine"
        scales = module.scales.astype(mx.float32) if affine else module.scales
        weight = mx.dequantize(module.weight, scales, biases.astype(mx.float32) if affine else None, module.group_size, module.bits, mode=module.mode,
                               dtype=mx.float32)
        if isinstance(module, QuantizedSwitchLinear):
            made = SwitchLinear(weight.shape[2], weight.shape[1], weight.shape[0], bias=False)
        elif isinstance(module, nn.QuantizedEmbedding):
            made = nn.Embedding(*weight.shape)
        else:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        made.weight = weight
        plain.append((path, made))
    assert plain
    model.update_modules(tree_unflatten(plain))
    model.set_dtype(mx.float32)
    out = model(mx.array([TOKENS]))[0]
    assert out.dtype == mx.float32
    return np.array(out)


def check_stated(folder):
    """That config.json states the quantization as mlx-lm's quantize_model does."""
    config = json.loads((folder / "config.json").read_text())
    stated = config.pop("quantization")
    model = qwen3_moe.Model(qwen3_moe.ModelArgs.from_dict(config))
    _, made = quantize_model(model, config, stated["group_size"], stated["bits"], mode=stated["mode"])
    assert made["quantization"] == stated, (made["quantization"], stated)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arrays, largest = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        synthesize(arguments.kvasir, "f16", folder / "f16")
        for mode in MODES:
            synthesize(arguments.kvasir, mode, folder / mode)
            arrays[mode] = logits(folder / mode)
        tensors = dict(mx.load(str(folder / "mlx-affine-4-64/model.safetensors")))
        config = json.loads((folder / "mlx-affine-4-64/config.json").read_text())
        for path, (mode, stated) in MIXED.items():
            for name in [n for n in tensors if n.startswith(path + ".")]:
                del tensors[name]
            tensors.update({n: t for n, t in mx.load(str(folder / mode / "model.safetensors")).items() if n.startswith(path + ".")})
            for key in ("quantization", "quantization_config"):
                if key in config:
                    config[key][path] = stated
        (folder / "mixed").mkdir()
        mx.save_safetensors(str(folder / "mixed/model.safetensors"), tensors, {"format": "mlx"})
        (folder / "mixed/config.json").write_text(json.dumps(config))
        arrays["mixed"] = logits(folder / "mixed")
        for mode in MOE_MODES:
            made = folder / f"{MOE}-{mode}"
            synthesize(arguments.kvasir, mode, made, MOE, MOE_SIZES)
            check_stated(made)
            arrays[made.name] = logits(made)
    for name, values in arrays.items():
        largest[name] = float(np.abs(values).max())
        print(f"{name}: max |logit| {largest[name]:.3f}")
    text = {"seed": SEED, "step": STEP, "tokens": TOKENS, "sizes": {"llama": SIZES, MOE: MOE_SIZES}, "max_abs": largest,
            "mixed": {path: {"from": mode, "stated": stated} for path, (mode, stated) in MIXED.items()}}
    (arguments.out / "mlx.json").write_text(json.dumps(text, indent=1) + "\n")
    save_file({name: np.ascontiguousarray(values[:, ::STEP]) for name, values in arrays.items()}, arguments.out / "mlx.safetensors")


if __name__ == "__main__":
    main()
