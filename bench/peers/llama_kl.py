#!/usr/bin/env python3
"""llama.cpp's own error against the float32 reference, for the accuracy tables.

    llama_kl.py --peers DIR --models DIR --reference DIR [--case NAME]... [--tokens N] [--prefix COMMAND]

Runs llama-logits (build.py) over the token ids of the reference for each case and adds the figures of kl.py to
DIR/llama_kl.json: {"smollm2": {"f16": {...}, "q8_0": {...}, "exact/q8_0": {...}, "Q4_0": {...}}, ...}.

Cases: a cache type (f16 q8_0 q5_1 q5_0 q4_1 q4_0), the model being the starter file as published; `exact/TYPE`: the same weights
de-quantized to F32 first, so that matmuls are float32 and only the cache is in error; and any other word is a file
NAME-WORD.gguf that llama-quantize made from the starter, compared with the starter's reference.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/oracles"))
import kl  # noqa: E402

STARTERS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-Q4_K_M.gguf"}
CACHES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("peers", "models", "reference"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--model", choices=sorted(STARTERS), action="append")
    parser.add_argument("--case", action="append")
    parser.add_argument("--tokens", type=int, help="use only the first N tokens")
    parser.add_argument("--prefix", default="", help="command to put before llama-logits")
    arguments = parser.parse_args()
    results_path = arguments.reference / "llama_kl.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    for name in arguments.model or STARTERS:
        ids = json.loads((arguments.reference / f"{name}.tokens.json").read_text())[:arguments.tokens]
        reference = np.load(arguments.reference / f"{name}.npy", mmap_mode="r")[:len(ids)]
        for case in arguments.case or ("f16", "q8_0", "q5_0", "q4_0"):
            exact, _, cache = case.rpartition("/")
            model = arguments.models / STARTERS[name]
            if exact:
                model = arguments.models / f"{name}-F32.gguf"
            elif cache not in CACHES:
                model, cache = arguments.models / f"{name}-{case}.gguf", "f16"
            if not model.exists():
                print(f"{name} {case}: no {model.name}")
                continue
            with tempfile.TemporaryDirectory(dir=arguments.reference) as folder:
                tokens, out = os.path.join(folder, "tokens.json"), os.path.join(folder, "out.npy")
                pathlib.Path(tokens).write_text(json.dumps(ids))
                subprocess.run([*shlex.split(arguments.prefix), arguments.peers / "llama/bin/llama-logits", model, tokens, out,
                                "--kv-k", cache, "--kv-v", cache], check=True)
                figures = kl.compare(reference, np.load(out, mmap_mode="r"))
            results.setdefault(name, {})[case] = figures
            results_path.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name} {case}: mean KL {figures['mean_kl']:.3e}, top-1 {figures['top1']:.4f}", flush=True)


if __name__ == "__main__":
    main()
