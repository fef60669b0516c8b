#!/usr/bin/env python3
"""kvasir beside llama.cpp and ik_llama.cpp: one table, tokens per second, every engine on the same files and threads.

    bench/peers/compare.py --peers DIR --models DIR [--kvasir build/release/kvasir] [--what speed|depth|batch]...
                           [--model PATTERN]... [--rounds N] [--threads N] [--python VENV] [--peer-depth N] [--json FILE]

DIR/llama/bin and DIR/ik/bin come from build.py; the models are those that README.md beside this script lists; what is missing is
left out and said. Runs are interleaved: round 1 of every engine, then round 2 ..., so that a slow minute of the machine hits all of
them. The figure is the median of the rounds; for ik_llama.cpp the better of run-time repacking off and on (`-rtr 0|1`).

--python VENV puts transformers and mlx-lm beside them (python_peers.py, run by VENV/bin/python; it needs torch, transformers, gguf and
mlx-lm): of few tokens, since they are slow, and of bfloat16 and MLX 4-bit weights made of the same file, not of the file itself.

The peers reach a depth by computing a prompt of that length, which takes them minutes at 8,192 tokens and much longer beyond:
depths past --peer-depth are kvasir's alone. Exit status 1 when there is nothing to compare.
"""

import argparse
import fnmatch
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = [
    ("SmolLM2 Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("SmolLM2 Q4_0", "smollm2-Q4_0.gguf"),
    ("SmolLM2 Q8_0", "smollm2-Q8_0.gguf"), ("Gemma 3 270M Q4_K_M", "gemma-3-270m-Q4_K_M.gguf"),
    ("1.07B Q4_0", "llama-1b-Q4_0.gguf"), ("1.07B Q4_K_M", "llama-1b-Q4_K_M.gguf"), ("1.07B Q8_0", "llama-1b-Q8_0.gguf"),
    ("1.07B Q4_1", "llama-1b-Q4_1.gguf"), ("1.07B F16", "llama-1b-F16.gguf"), ("1.07B BF16", "llama-1b-BF16.gguf"),
]
PROMPT, NEW = 512, 64
DEPTHS = {"SmolLM2*": (4096,), "1.07B Q4_0": (8192, 32768)}
BATCHES = (1, 4, 16)
# Caches of as many bytes: the peers' type, and ours.
CACHES = {"f16": "bf16", "q8_0": "q8_0", "q4_0": "rot:q4_0"}


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


class Kvasir:
    name = "kvasir"

    def __init__(self, binary, threads):
        self.binary, self.threads = binary, threads

    def bench(self, model, *flags):
        # The others measure on a busy machine, too: what was seen is told instead.
        out = json.loads(run([self.binary, "bench", model, "-t", self.threads, *flags, "--force", "--json"]))
        for when in ("before", "during"):
            if seen := out.get("machine", {}).get("busy_" + when):
                print(f"busy {when} kvasir's run: {'; '.join(seen)}", file=sys.stderr)
        return out

    def speed(self, model):
        out = self.bench(model, "-p", PROMPT, "-n", NEW)
        return {"prefill": out["prefill_tokens_per_s"], "decode": out["decode_tokens_per_s"],
                "bandwidth fraction": out["decode_bandwidth_fraction"],
                "arithmetic fraction": out["prefill_arithmetic_fraction"], "GB/s": out["read_bandwidth_gb_s"]}

    def depth(self, model, depth, cache):
        out = self.bench(model, "-p", 0, "-n", 32, "--depth", depth, "--kv", CACHES[cache])
        return {"decode": out["decode_tokens_per_s"], "bandwidth fraction": out["decode_bandwidth_fraction"]}

    def batch(self, model, batch):
        return {"decode": self.bench(model, "-p", 16, "-n", 32, "--batch", batch)["decode_tokens_per_s"]}


class LlamaBench:
    def __init__(self, name, folder, threads, flags=()):
        self.name, self.bin, self.threads, self.flags = name, folder, threads, flags

    def bench(self, model, *flags):
        text = run([self.bin / "llama-bench", "-m", model, "-t", self.threads, "-r", 1, "-o", "json", *self.flags, *flags])
        figures = {}
        for row in json.loads(text[text.index("["):]):  # ik prints a line before the list
            figures["prefill" if row["n_gen"] == 0 else "decode"] = row["avg_ts"]
        return figures

    def speed(self, model):
        return self.bench(model, "-p", PROMPT, "-n", NEW)


class LlamaCpp(LlamaBench):
    def depth(self, model, depth, cache):
        return self.bench(model, "-p", 0, "-n", 32, "-d", depth, "-fa", 1, "-ctk", cache, "-ctv", cache)

    def batch(self, model, batch):
        text = run([self.bin / "llama-batched-bench", "-m", model, "-t", self.threads, "-c", 4096, "-npp", 16, "-ntg", 32, "-npl",
                    batch, "--output-format", "jsonl"])
        row = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        return {"decode": row["speed_tg"]}


class IkLlamaCpp(LlamaBench):
    def depth(self, model, depth, cache):
        # Its llama-bench measures generation after a prompt with -gp; the figure is the generation's alone.
        return self.bench(model, "-p", 0, "-n", 0, "-gp", f"{depth},32", "-ctk", cache, "-ctv", cache)


class PythonPeer:
    # Tokens of the prompt and after it: a warming round and a counted one of these take a minute or two.
    LENGTHS = {"transformers": (128, 8), "mlx": (16, 4)}

    def __init__(self, engine, python, threads, work):
        self.engine, self.python, self.threads, self.work = engine, python, threads, work
        self.name = {"transformers": "transformers", "mlx": "mlx-lm"}[engine]

    def speed(self, model):
        prompt, new = self.LENGTHS[self.engine]
        text = run([self.python, pathlib.Path(__file__).resolve().parent / "python_peers.py", model, "--engine", self.engine, "--threads",
                    self.threads, "--rounds", 1, "--prompt", prompt, "--tokens", new, "--work", self.work])
        return json.loads(text.splitlines()[-1])[self.engine]


def measure(engines, model, what, rounds, skipped=()):
    """Interleaved rounds; returns {engine: {figure: median}} and prints what went wrong."""
    samples = {}
    for _ in range(rounds):
        for engine in engines:
            function = getattr(engine, what[0], None)
            if function is None or samples.get(engine.name) == "failed" or engine in skipped:
                continue
            try:
                figures = function(model, *what[1:])
            except (RuntimeError, ValueError, KeyError, StopIteration, OSError) as error:
                print(f"  {engine.name}: {error}", file=sys.stderr)
                samples[engine.name] = "failed"
                continue
            for key, value in figures.items():
                samples.setdefault(engine.name, {}).setdefault(key, []).append(value)
    return {name: {key: statistics.median(values) for key, values in figures.items()}
            for name, figures in samples.items() if figures != "failed"}


def merge_variants(figures):
    """Folds `ik` with and without run-time repacking into the better of the two, figure by figure."""
    variants = [figures.pop(name) for name in list(figures) if re.match(r"ik -rtr", name)]
    if variants:
        figures["ik"] = {key: max(v[key] for v in variants if key in v) for key in variants[0]}
    return figures


def table(title, rows, engines, columns):
    print(f"\n### {title}\n")
    heads = [f"{engine} {column}" for column in columns for engine in engines]
    print("| model | " + " | ".join(heads) + " |\n| --- |" + " ---: |" * len(heads))
    for label, figures in rows:
        cells = []
        for column in columns:
            for engine in engines:
                value = figures.get(engine, {}).get(column)
                cells.append("-" if value is None else f"{value:.0%}" if "fraction" in column else f"{value:.4g}")
        print(f"| {label} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--kvasir", type=pathlib.Path, default=ROOT / "build/release/kvasir")
    parser.add_argument("--what", choices=("speed", "depth", "batch"), action="append")
    parser.add_argument("--model", action="append", help="pattern of the names in the table, such as '1.07B*'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", type=pathlib.Path, metavar="VENV", help="transformers and mlx-lm too, from this virtual environment")
    parser.add_argument("--peer-depth", type=int, default=8192, help="deepest context that the peers are measured at (default 8192)")
    parser.add_argument("--json", type=pathlib.Path, help="add the figures to this file")
    arguments = parser.parse_args()

    engines = []
    if arguments.kvasir.exists():
        engines.append(Kvasir(arguments.kvasir, arguments.threads))
    if (arguments.peers / "llama/bin/llama-bench").exists():
        engines.append(LlamaCpp("llama.cpp", arguments.peers / "llama/bin", arguments.threads))
    if (arguments.peers / "ik/bin/llama-bench").exists():
        for repack in (0, 1):
            engines.append(IkLlamaCpp(f"ik -rtr {repack}", arguments.peers / "ik/bin", arguments.threads,
                                      ("-fa", 1, "-rtr", repack)))
    temporary = tempfile.TemporaryDirectory() if arguments.python else None  # mlx-lm's copies of the models
    if arguments.python:
        python = arguments.python / "bin/python"
        if not python.exists():
            sys.exit(f"compare.py: {python} is missing: --python takes a virtual environment")
        engines += [PythonPeer(engine, python, arguments.threads, temporary.name) for engine in PythonPeer.LENGTHS]
    if not engines:
        sys.exit(f"compare.py: no engine: neither {arguments.kvasir} nor a build of build.py in {arguments.peers}")
    print("engines:", ", ".join(engine.name for engine in engines))

    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    tables = {}
    for what in arguments.what or ["speed"]:
        for label, file in MODELS:
            if arguments.model and not any(fnmatch.fnmatch(label, pattern) for pattern in arguments.model):
                continue
            path = arguments.models / file
            if not path.exists():
                print(f"left out: {label} ({file} is missing)")
                continue
            depths = next((d for pattern, d in DEPTHS.items() if fnmatch.fnmatch(label, pattern)), ())
            cases = {"speed": [(label, ("speed",))],
                     "depth": [(f"{label}, depth {d}, {c}", ("depth", d, c)) for d in depths for c in CACHES],
                     "batch": [(f"{label}, batch {b}", ("batch", b)) for b in BATCHES]}[what]
            for name, case in cases:
                skipped = []
                if what == "depth" and case[1] > arguments.peer_depth:
                    skipped = [engine for engine in engines if not isinstance(engine, Kvasir)]
                    print(f"left out: {name} of the peers (--peer-depth {arguments.peer_depth})")
                figures = merge_variants(measure(engines, path, case, arguments.rounds, skipped))
                tables.setdefault(what, []).append((name, figures))
                for engine, values in figures.items():
                    results.setdefault(what, {}).setdefault(name, {})[engine] = values
                if arguments.json:
                    arguments.json.write_text(json.dumps(results, indent=1) + "\n")
                print(name, json.dumps(figures), flush=True)
    if not any(figures for rows in tables.values() for _, figures in rows):
        sys.exit("compare.py: nothing was measured: no model of the table is there and matches, or every run failed")
    names = [n for n in ("kvasir", "llama.cpp", "ik", "transformers", "mlx-lm") if any(n in f for rows in tables.values() for _, f in rows)]
    columns = {"speed": ("prefill", "decode", "bandwidth fraction", "arithmetic fraction"), "depth": ("decode", "bandwidth fraction"), "batch": ("decode",)}
    for what, rows in tables.items():
        shown = [c for c in columns[what] if "fraction" not in c]
        table(f"{what}, tokens/s", rows, names, shown)
        fractions = [c for c in columns[what] if "fraction" in c]
        if fractions and "kvasir" in names:
            table("kvasir, share of the machine's limit", rows, ["kvasir"], fractions)


if __name__ == "__main__":
    main()
