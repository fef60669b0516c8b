#!/usr/bin/env python3
"""A small real model in every storage format that it can have, for format_accuracy.py.

    format_models.py --source MODEL.gguf --out DIR --name smollm2 [--llama peers/llama/bin --text TEXT] [--only KIND ...]

Writes DIR/<name>-<KIND>.gguf by llama-quantize (TEXT makes the importance matrix that the smallest kinds need; llama-imatrix) and folders
DIR/<name>-<KIND>: MLX's by mlx-lm, FP8 and GPTQ by the plain rounding below, all from DIR/<name>-hf, which transformers reads from the GGUF file.
Files that exist stay. Needs transformers, torch, gguf; for the folders mlx-lm.
"""

import argparse
import json
import pathlib
import subprocess

import numpy as np

# Of the whole model, with what llama-quantize takes where a width is no multiple of 256.
WHOLE = "F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_1 Q5_0 Q4_K_M Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_M Q2_K IQ3_S Q2_0".split()
# No target of llama-quantize for a dense model: every matrix of the layers, the rest in q8_0.
LAYERS = {"MXFP4": "mxfp4", "NVFP4": "nvfp4"}
# These ruin a whole model of this size, or their targets hold none of them here: the down projections alone, the rest in q8_0.
DOWN = {f"{kind}-down": f"ffn_down={kind.lower()}" for kind in "Q3_K Q2_K IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S".split()}
# ... and even that: of five layers alone.
DOWN |= {f"{kind}-five": rf"blk\.1[0-4]\.ffn_down={kind.lower()}" for kind in "TQ2_0 TQ1_0 Q2_0 Q1_0".split()}
MLX = {f"mlx-affine-{bits}-{group}": ("affine", bits, group) for group in (32, 64, 128) for bits in (2, 3, 4, 5, 6, 8)}
MLX |= {f"mlx-affine-2-{group}-down": ("affine", 2, group) for group in (32, 64, 128)}  # the rest in 8 bits, as an override of every other module
MLX |= {"mlx-mxfp4": ("mxfp4", 4, 32), "mlx-mxfp8": ("mxfp8", 8, 32), "mlx-nvfp4": ("nvfp4", 4, 16)}
GPTQ = {f"gptq-{bits}-{group}": (bits, group) for bits, group in ((2, 32), (4, 64), (8, 64))}
FP8 = {"fp8-128": "float8_e4m3fn", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}


def quantize(llama, source, target, matrix, kind):
    options = ["--allow-requantize"]
    if kind in DOWN:
        options += ["--imatrix", matrix]
    if kind in LAYERS:
        options += ["--tensor-type", f"blk.*={LAYERS[kind]}"]
    if kind in DOWN:
        options += ["--tensor-type", DOWN[kind]]
    part = target.with_suffix(".part")
    done = subprocess.run([llama / "llama-quantize", *options, source, part, kind if kind in WHOLE else "Q8_0", "1"], capture_output=True, text=True)
    if done.returncode == 0:
        part.rename(target)
        return
    part.unlink(missing_ok=True)
    print(f"{target.name}: {(done.stdout + done.stderr).strip().splitlines()[-2:]}", flush=True)


def hf_folder(source, folder):
    """The values of the GGUF file in bf16, as a Hugging Face folder. save_pretrained refuses what was read from GGUF."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    config.pop("quantization_config", None)
    tied = config["tie_word_embeddings"]
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n")


def mlx_folder(folder, target, mode, bits, group, down_alone):
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    mx.set_default_device(mx.cpu)
    model, config = load_model(folder, lazy=True)

    def sizes(path, module):
        if not hasattr(module, "to_quantized"):
            return False
        if down_alone and "down_proj" not in path:
            return {"group_size": 64, "bits": 8, "mode": mode}
        return True

    model, config = quantize_model(model, config, group, bits, mode, quant_predicate=sizes)
    save_model(target, model)
    save_config(config, target / "config.json")


def other_folder(folder, target, kind):
    """Round to nearest, no calibration: the formats' values are real, the methods' cleverness is not the question."""
    import torch
    from safetensors.torch import load_file, save_file

    def words(codes, bits):  # int32 words of the last axis, lowest element first
        parts = codes.reshape(*codes.shape[:-1], -1, 32 // bits).astype(np.uint64)
        return torch.from_numpy((parts << (np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits))).sum(-1, dtype=np.uint64).astype(np.uint32).view(np.int32))

    tensors, out = load_file(folder / "model.safetensors"), {}
    for name, tensor in tensors.items():
        w = tensor.float()
        if kind in ("f8_e4m3", "f8_e5m2"):
            out[name] = w.to(getattr(torch, FP8[kind])) if w.ndim == 2 else tensor
        elif not name.endswith("proj.weight"):
            out[name] = tensor
        elif kind in FP8:
            rows, cols = w.shape
            padded = torch.zeros(-(-rows // 128) * 128, -(-cols // 128) * 128)
            padded[:rows, :cols] = w
            blocks = padded.view(padded.shape[0] // 128, 128, -1, 128)
            scales = blocks.abs().amax((1, 3)) / 448
            out[name] = (blocks / scales[:, None, :, None]).view(padded.shape)[:rows, :cols].to(torch.float8_e4m3fn)
            out[name + "_scale_inv"] = scales
        else:
            bits, group = GPTQ[kind]
            top = (1 << bits) - 1
            columns = w.numpy().T.reshape(-1, group, w.shape[0])  # [groups, columns of a group, rows]
            low, high = np.minimum(columns.min(1), 0), np.maximum(columns.max(1), 0)
            scale = np.maximum((high - low) / top, 1e-6).astype(np.float16)
            zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, top)
            codes = np.clip(np.rint(columns / scale.astype(np.float32)[:, None]) + zero[:, None], 0, top).reshape(-1, w.shape[0])
            module = name.removesuffix("weight")
            out[module + "qweight"] = words(np.ascontiguousarray(codes.T), bits).T.contiguous()
            out[module + "qzeros"], out[module + "scales"] = words(zero, bits), torch.from_numpy(scale)
    config = json.loads((folder / "config.json").read_text())
    if kind in GPTQ:
        bits, group = GPTQ[kind]
        config["quantization_config"] = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": False,
                                         "checkpoint_format": "gptq_v2"}
    elif kind == "fp8-128":
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    target.mkdir()
    save_file({name: t.contiguous() for name, t in out.items()}, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--llama", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    wanted = lambda kinds: [kind for kind in kinds if not arguments.only or kind in arguments.only]
    path = lambda kind: arguments.out / f"{arguments.name}-{kind}"
    matrix = path("imatrix.dat")
    if arguments.llama:
        f32 = path("F32.gguf")
        if not f32.exists():
            quantize(arguments.llama, arguments.source, f32, matrix, "F32")
        if wanted(DOWN) and not matrix.exists():
            subprocess.run([arguments.llama / "llama-imatrix", "-m", f32, "-f", arguments.text, "-o", matrix, "--chunks", "8", "-c", "512",
                            "--no-ppl", "-t", "1"], check=True, capture_output=True)
        for kind in wanted([*WHOLE, *LAYERS, *DOWN]):
            if not path(f"{kind}.gguf").exists():
                quantize(arguments.llama, f32, path(f"{kind}.gguf"), matrix, kind)
    folder = path("hf")
    for kind in wanted([*MLX, *GPTQ, *FP8]):
        if not folder.exists():
            hf_folder(arguments.source, folder)
        if path(kind).exists():
            continue
        if kind in MLX:
            mlx_folder(folder, path(kind), *MLX[kind], kind.endswith("-down"))
        else:
            other_folder(folder, path(kind), kind)
        print(path(kind), flush=True)


if __name__ == "__main__":
    main()
