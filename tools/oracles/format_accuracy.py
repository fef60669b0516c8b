#!/usr/bin/env python3
"""The error of the rounding activation modes per storage format, beside llama.cpp's on the same file: the table of docs/formats.md.

    format_accuracy.py --kvasir build/release/kvasir --llama-logits peers/llama/bin/llama-logits --models DIR --tokens ids.json
                       --name smollm2 --json OUT.json [--count 1024] [--only FORMAT ...] [--plain FILE]
    format_accuracy.py --json OUT.json --table

For every DIR/<name>-<FORMAT>.gguf and folder DIR/<name>-<FORMAT> (format_models.py makes them): mean KL(f32 || mode) per position in nats,
where f32 is `eval logits --activations f32` of the same file; the modes with their default cache (bf16), llama.cpp with its own (f16; GGUF
only). `format` is the format's own error, KL(f32 of --plain || f32 of the file). --plain: the model that the files were made from, or its
logits (.npy).
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

from kl import BLOCK_ELEMENTS, log_softmax

MODES = ("bf16", "int8", "int16")
COLUMNS = {**{mode: mode for mode in MODES}, "llama": "llama.cpp", "format": "the format"}


def divergences(reference, others):
    """Mean KL(reference || other) of each; the reference's probabilities are made once for all."""
    sums = dict.fromkeys(others, 0.0)
    block = max(1, BLOCK_ELEMENTS // reference.shape[1])
    for start in range(0, len(reference), block):
        rows = slice(start, start + block)
        p = log_softmax(reference[rows])
        weights = np.exp(p)
        for name, other in others.items():
            q = other[rows].astype(np.float64)
            if q.shape != p.shape or not np.isfinite(q).all():
                raise ValueError(f"{name}: shape {other.shape}, or not finite from row {start}")
            q -= q.max(axis=1, keepdims=True)
            p -= q
            sums[name] += (weights * p).sum() + np.log(np.exp(q).sum(axis=1)).sum()
            p += q
    return {name: float(total) / len(reference) for name, total in sums.items()}


def formats_of(kvasir, path):
    done = subprocess.run([kvasir, "inspect", path, "--tensors", "--json"], capture_output=True, text=True, check=True)
    matrices = [tensor["format"] for tensor in json.loads(done.stdout)["tensors"] if len(tensor["shape"]) > 1]
    return {name: matrices.count(name) for name in sorted(set(matrices))}


def logits(command, out):
    """(array, None) or (None, why not)."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:150]
    return np.load(out, mmap_mode="r"), None


def measure(arguments, model, folder, plain):
    (folder / "ids.json").write_text(json.dumps(arguments.ids))

    def ours(mode):
        out = folder / f"{mode}.npy"
        return logits([arguments.kvasir, "eval", "logits", model, "--tokens", folder / "ids.json", "--out", out, "--activations", mode], out)

    entry = {"tensors": formats_of(arguments.kvasir, model)}
    reference, problem = ours("f32")
    if problem:
        return entry | {"problem": problem}
    made = {mode: ours(mode) for mode in MODES}
    if made["int8"][1] and len(entry["tensors"]) > 1:  # a weight without an integer form beside others: what `auto` does with both
        made["auto"] = ours("auto")
    if model.suffix == ".gguf":
        out = folder / "llama.npy"
        made["llama"] = logits([arguments.llama_logits, model, folder / "ids.json", out], out)
    others = {name: array for name, (array, _) in made.items() if array is not None}
    entry |= {name: {"refused": why} for name, (_, why) in made.items() if why}
    entry |= {name: {"mean_kl": kl, "positions": len(reference)} for name, kl in divergences(reference, others).items()}
    if plain is not None:
        entry["format"] = {"mean_kl": divergences(plain, {"format": reference})["format"], "positions": len(reference)}
    return entry


def cell(entry, column):
    figures = entry.get(column)
    if figures is None:
        return "-"
    if "refused" in figures:
        mixed = column == "int8" and "auto" in entry and entry["auto"] != entry["bf16"]
        return f"auto {entry['auto']['mean_kl']:.2e}" if mixed else "refused"
    return "0" if abs(figures["mean_kl"]) < 1e-12 else f"{figures['mean_kl']:.2e}"


def print_table(results):
    print("| file | formats of its matrices | " + " | ".join(COLUMNS.values()) + " |\n| --- | --- |" + " ---: |" * len(COLUMNS))
    for name, entry in results.items():
        formats = ", ".join(f"{f} x {n}" for f, n in sorted(entry["tensors"].items(), key=lambda item: -item[1]))
        print(f"| {name.replace('/', ' ')} | {formats} | " + " | ".join(cell(entry, column) for column in COLUMNS) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvasir", "llama-logits", "models", "tokens", "plain"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    if arguments.table:
        print_table(results)
        return
    arguments.ids = json.loads(arguments.tokens.read_text())[:arguments.count]
    models = [path for path in sorted(arguments.models.glob(f"{arguments.name}-*")) if path.suffix == ".gguf" or (path / "config.json").exists()]
    with tempfile.TemporaryDirectory() as outer:
        plain = None
        if arguments.plain and arguments.plain.suffix == ".npy":
            plain = np.load(arguments.plain, mmap_mode="r")
        elif arguments.plain:
            ids, out = pathlib.Path(outer) / "ids.json", pathlib.Path(outer) / "plain.npy"
            ids.write_text(json.dumps(arguments.ids))
            plain, problem = logits([arguments.kvasir, "eval", "logits", arguments.plain, "--tokens", ids, "--out", out, "--activations", "f32"], out)
            if problem:
                parser.error(f"{arguments.plain}: {problem}")
        for model in models:
            kind = model.name.removeprefix(arguments.name + "-").removesuffix(".gguf")
            if (arguments.only and kind not in arguments.only) or f"{arguments.name}/{kind}" in results:
                continue
            with tempfile.TemporaryDirectory() as folder:
                entry = measure(arguments, model, pathlib.Path(folder), plain)
            results[f"{arguments.name}/{kind}"] = entry
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
            print(arguments.name, kind, {name: value if isinstance(value, str) else value.get("mean_kl", value.get("refused")) or value
                                         for name, value in entry.items()}, flush=True)


if __name__ == "__main__":
    main()
