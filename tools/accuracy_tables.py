#!/usr/bin/env python3
"""Markdown tables of docs/accuracy.md, from the figures of tools/acceptance.py and bench/peers/llama_kl.py.

    tools/accuracy_tables.py --acceptance FIGURES.json --llama llama_kl.json [--kv-plot OUT.json]

--kv-plot also writes the input of tools/plot_kv.py.
"""

import argparse
import json
import pathlib

TITLES = {"smollm2": "SmolLM2-135M-Instruct Q4_1", "gemma3": "Gemma 3 270M Q4_K_M"}
# Elements of K and V per token: layers x KV heads x (K + V dimensions).
KV_ELEMENTS = {"smollm2": 30 * 3 * 2 * 64, "gemma3": 18 * 1 * 2 * 256}
LLAMA_BITS = {"f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}


def row(cells):
    return "| " + " | ".join(cells) + " |"


def figures(entry):
    return [f"{entry['mean_kl']:.2e}", f"{entry['median_kl']:.2e}", f"{entry['p99_kl']:.2e}", f"{entry['top1']:.2%}"]


def plane_bits(plane):
    """Stored bits per element of a plane codec (docs/kv-cache.md): codes, and scales and offsets per group."""
    name, _, rest = plane.partition(":")
    if name in ("f32", "f16", "bf16"):
        return {"f32": 32, "f16": 16, "bf16": 16}[name]
    bits, _, group = rest.partition(":")
    return int(bits) + {"affine": 32 / int(group or 64), "rot": 0.5, "turbokey": 1.0}[name]


def codec_bits(codec):
    name, _, rest = codec.partition(":")
    if name == "turbo":
        k, v = (rest or "8,3").split(",")
        return (plane_bits(f"turbokey:{k}") + plane_bits(f"rot:{v}")) / 2
    k, _, v = codec.partition("/")
    return (plane_bits(k) + plane_bits(v or k)) / 2


def family(codec):
    if "/" in codec:
        return "mixed"
    return {"affine": "affine, group 64", "rot": "rot", "turbo": "turbo"}.get(codec.partition(":")[0], "plain")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acceptance", type=pathlib.Path, required=True)
    parser.add_argument("--llama", type=pathlib.Path, required=True)
    parser.add_argument("--kv-plot", type=pathlib.Path)
    arguments = parser.parse_args()
    ours = json.loads(arguments.acceptance.read_text())["figures"]
    llama = json.loads(arguments.llama.read_text())
    plot = {}
    for name, title in TITLES.items():
        peer = llama.get(name, {})
        print(f"### {title}\n")
        print(row(["run", "mean KL", "median", "99th percentile", "top-1"]) + "\n" + row(["---"] + ["---:"] * 4))
        for mode in ("f32", "bf16", "int8", "int8 --kv f16"):
            if f"kl.{name}.{mode}" in ours:
                print(row([f"kvasir, `--activations {mode}`", *figures(ours[f"kl.{name}.{mode}"])]))
        for case, label in (("f16", "llama.cpp, as published"), ("exact/f16", "llama.cpp, weights de-quantized to F32")):
            if case in peer:
                print(row([label, *figures(peer[case])]))
        print()
        caches = {key.split(".", 2)[2]: value for key, value in ours.items() if key.startswith(f"kv.{name}.")}
        theirs = {case.removeprefix("exact/"): value for case, value in peer.items() if case.startswith("exact/q")}
        if caches or theirs:
            print(row(["KV cache", "bits per element", "bytes per token", "mean KL", "top-1"]) + "\n" + row(["---"] + ["---:"] * 4))
            lines = [(codec_bits(c), f"kvasir `{c}`", v) for c, v in caches.items()]
            lines += [(LLAMA_BITS[c], f"llama.cpp `{c}`", v) for c, v in theirs.items()]
            for bits, label, value in sorted(lines, key=lambda line: (-line[0], line[1])):
                size = KV_ELEMENTS[name] * bits / 8
                print(row([label, f"{bits:g}", f"{size:,.0f}", f"{value['mean_kl']:.2e}", f"{value['top1']:.2%}"]))
            print()
            panel = plot.setdefault(title, {})
            for c, v in caches.items():
                panel.setdefault(family(c), []).append(
                    {"label": c.partition(":")[2] or c, "bytes_per_token": KV_ELEMENTS[name] * codec_bits(c) / 8, "mean_kl": v["mean_kl"]})
            for c, v in theirs.items():
                panel.setdefault("llama.cpp", []).append(
                    {"label": c, "bytes_per_token": KV_ELEMENTS[name] * LLAMA_BITS[c] / 8, "mean_kl": v["mean_kl"]})
    if arguments.kv_plot:
        arguments.kv_plot.write_text(json.dumps(plot, indent=1) + "\n")


if __name__ == "__main__":
    main()
