#!/usr/bin/env python3
"""The names that tensors of each family have in GGUF files, from the `gguf` package that llama.cpp's converter uses.

    gguf_names.py --kvasir build/release/kvasir --out tests/data/models

`kvasir synth` writes a tiny checkpoint of each family that has a GGUF architecture, so that the publisher's names are those of the
families' goldens; the package's tensor map gives the name in a GGUF file, and its list of the architecture's tensors must have it. What the
converter makes of a tensor by code of its own is in CONVERTED. Writes OUT/gguf_names.json: of each architecture and family, names by the
publisher's, with {i} for numbers (an empty list: metadata).
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import gguf
from safetensors import safe_open

FAMILIES = {"apertus": "apertus", "cohere": "command-r", "cohere2": "cohere2", "ernie4_5": "ernie4_5", "exaone": "exaone", "exaone4": "exaone4",
            "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "glm4": "glm4", "granite": "granite", "hunyuan_v1_dense": "hunyuan-dense",
            "internlm2": "internlm2", "llama": "llama", "minicpm": "minicpm", "ministral3": "mistral3", "nemotron": "nemotron", "olmo": "olmo",
            "olmo2": "olmo2", "olmo3": "olmo2", "phi": "phi2", "phi3": "phi3", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
            "seed_oss": "seed_oss", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2"}
# Fields of tiny shapes whose tensors would not be seen otherwise.
SETS = {"stablelm": {"qk_layernorm": True}}
# llama.cpp, conversion/: llama.py (ApertusModel: lists in the metadata), internlm.py (split and permuted; it knows no biases, and neither do the
# published checkpoints), qwen.py (Qwen2MoeModel: halves), stablelm.py (norms of heads are stacked).
CONVERTED = {
    "apertus": {f"model.layers.{{i}}.mlp.act_fn.{scalar}": [] for scalar in ("alpha_n", "alpha_p", "beta", "eps")},
    "internlm2": {f"model.layers.{{i}}.attention.wqkv.{kind}": [f"blk.{{i}}.attn_{part}.{kind}" for part in "qkv"] for kind in ("weight", "bias")},
    "qwen3_moe": {"model.layers.{i}.mlp.experts.gate_up_proj": ["blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight"],
                  "model.layers.{i}.mlp.experts.down_proj": ["blk.{i}.ffn_down_exps.weight"]},
    "stablelm": {f"model.layers.{{i}}.self_attn.{part}_layernorm.norms.{{i}}.weight": [f"blk.{{i}}.attn_{part}_norm.weight"] for part in "qk"},
}


def numbered(name):
    return re.sub(r"\.\d+(?=\.)", ".{i}", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = {}
    for family, architecture in FAMILIES.items():
        listed = {gguf.TENSOR_NAMES[tensor].replace("{bid}", "{i}") for tensor in gguf.MODEL_TENSORS[architectures[architecture]]}
        names = gguf.get_tensor_name_map(architectures[architecture], 64)
        with tempfile.TemporaryDirectory() as folder:
            sets = [argument for key, value in SETS.get(family, {}).items() for argument in ("--set", f"{key}={json.dumps(value)}")]
            subprocess.run([arguments.kvasir, "synth", f"{folder}/hf", "--family", family, *sets], check=True, capture_output=True)
            with safe_open(f"{folder}/hf/model.safetensors", "np") as file:
                theirs = sorted(file.keys())
        rows = {}
        for name in theirs:
            ours = CONVERTED.get(family, {}).get(numbered(name))
            if ours is None:
                mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
                assert mapped is not None, f"{family}: the package has no name for {name}"
                ours = [numbered(mapped)]
            for tensor in ours:
                assert re.sub(r"\.(weight|bias)$", "", tensor) in listed, f"{family}: {tensor} is no tensor of {architecture}"
            rows[numbered(name)] = ours
        table[family] = {"architecture": architecture, "names": rows, "sets": SETS.get(family, {})}
        print(f"{family} ({architecture}): {len(rows)} names")
    lines = []
    for family, entry in table.items():
        rows = ",\n".join(f"   {json.dumps(theirs)}: {json.dumps(ours)}" for theirs, ours in entry["names"].items())
        lines.append(f' {json.dumps(family)}: {{"architecture": {json.dumps(entry["architecture"])}, "sets": {json.dumps(entry["sets"])}, "names": {{\n{rows}}}}}')
    (arguments.out / "gguf_names.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
