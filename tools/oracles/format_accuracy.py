#!/usr/bin/env python3
"""The error of the rounding activation modes per storage format, beside llama.cpp's on the same file: the table of docs/formats.md.

    format_accuracy.py --kvasir build/release/kvasir --llama-logits peers/llama/bin/llama-logits --models DIR --tokens ids.json
                       --name smollm2 --json OUT.json [--count 1024] [--only FORMAT ...]

For every DIR/<name>-<FORMAT>.gguf: mean KL(f32 || mode) per position in nats, where f32 is `eval logits --activations f32` of the same
file; int8 and bf16 with their default cache (bf16), llama.cpp with its own (f16).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kl  # noqa: E402


def formats_of(kvasir, path):
    done = subprocess.run([kvasir, "inspect", path, "--json"], capture_output=True, text=True, check=True)
    listed = json.loads(done.stdout)["weight_formats"]
    count = {name: int(n) for name, n in (part.rsplit(" x ", 1) for part in listed.split(", "))}
    return {name: n for name, n in count.items() if name != "f32" or len(count) == 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvasir", "llama-logits", "models", "tokens", "json"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    ids = json.loads(arguments.tokens.read_text())[:arguments.count]
    for model in sorted(arguments.models.glob(f"{arguments.name}-*.gguf")):
        kind = model.stem.removeprefix(arguments.name + "-")
        if arguments.only and kind not in arguments.only or f"{arguments.name}/{kind}" in results:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "ids.json").write_text(json.dumps(ids))

            def ours(mode):
                out = folder / f"{mode}.npy"
                done = subprocess.run([arguments.kvasir, "eval", "logits", model, "--tokens", folder / "ids.json", "--out", out,
                                       "--activations", mode], capture_output=True, text=True)
                if done.returncode != 0:
                    return None, done.stderr.strip().splitlines()[0][:150]
                return np.load(out, mmap_mode="r"), None

            reference, problem = ours("f32")
            entry = {"tensors": formats_of(arguments.kvasir, model), "problem": problem}
            if reference is not None:
                for mode in ("bf16", "int8"):
                    logits, problem = ours(mode)
                    entry[mode] = kl.compare(reference, logits) if logits is not None else {"refused": problem}
                    (folder / f"{mode}.npy").unlink(missing_ok=True)
                out = folder / "llama.npy"
                subprocess.run([arguments.llama_logits, model, folder / "ids.json", out], check=True, capture_output=True)
                entry["llama"] = kl.compare(reference, np.load(out, mmap_mode="r"))
        results[f"{arguments.name}/{kind}"] = entry
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(arguments.name, kind, entry["tensors"],
              {m: e.get("mean_kl", e.get("refused")) for m, e in entry.items() if isinstance(e, dict) and m != "tensors"}, flush=True)


if __name__ == "__main__":
    main()
