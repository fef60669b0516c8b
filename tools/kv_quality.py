#!/usr/bin/env python3
"""Quality of KV codecs against their size: a table, a check against llama.cpp's caches, and the input of plot_kv.py.

    kvasir eval kv-sensitivity MODEL --tokens IDS --activations f32 --kv-plain f16 --together SPEC ... --json > a.json
    tools/kv_quality.py --panel TITLE:ELEMENTS:LLAMA_NAME:a.json[,b.json...] ... --llama ref/llama_kl.json --figures figures.json

ELEMENTS is the number of keys' and values' elements of a token over all layers. llama.cpp's figures are those of weights in F32, so that its
cache alone is in error; `--activations f32` does the same here. A codec is behind llama.cpp's frontier when a cache of llama.cpp's
that is no larger loses no more.
"""
import argparse
import json
import pathlib

LLAMA_BITS = {"q8_0": 8.5, "q5_0": 5.5, "q4_0": 4.5}


def family(codec):
    if "/" in codec:
        return "pairs"
    name = codec.split(":")[0]
    if name in ("f16", "bf16"):
        return "plain"
    return f"affine, groups of {codec.split(':')[2]}" if name == "affine" and codec.count(":") == 2 else name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panel", action="append", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--figures", required=True)
    options = parser.parse_args()
    llama = json.loads(pathlib.Path(options.llama).read_text())
    figures, behind = {}, []
    for panel in options.panel:
        title, elements, name, files = panel.split(":", 3)
        elements = int(elements)
        points = [point for file in files.split(",") for point in json.loads(pathlib.Path(file).read_text())]
        rivals = [(codec, bits * elements / 8, llama[name][f"exact/{codec}"]["mean_kl"])
                  for codec, bits in LLAMA_BITS.items() if f"exact/{codec}" in llama[name]]
        series = {}
        print(f"\n| {title} | layers | bits per element | bytes per token | mean KL | top-1 |\n| --- | --- | ---: | ---: | ---: | ---: |")
        for point in sorted(points, key=lambda p: (p["layers"], -p["bytes_per_token"], p["mean_kl"])):
            bits = f"{8 * point['bytes_per_token'] / elements:.2f}" if point["layers"] == "all" else ""
            print(f"| `{point['codec']}` | {point['layers']} | {bits} | {point['bytes_per_token']:,} | {point['mean_kl']:.2e} | {100 * point['top1']:.2f}% |")
            if point["layers"] != "all":
                continue
            series.setdefault(family(point["codec"]), []).append(
                {"label": point["codec"], "bytes_per_token": point["bytes_per_token"], "mean_kl": point["mean_kl"]})
        for codec, size, loss in rivals:
            print(f"| llama.cpp `{codec}` | all | {8 * size / elements:.2f} | {size:,.0f} | {loss:.2e} | |")
            series.setdefault("llama.cpp", []).append({"label": codec, "bytes_per_token": size, "mean_kl": loss})
            best = min((p for p in points if p["layers"] == "all" and p["bytes_per_token"] <= size * 1.0001),
                       key=lambda p: p["mean_kl"], default=None)
            if best is None or best["mean_kl"] > loss:
                behind.append(f"{title}: nothing of at most {size:,.0f} bytes reaches llama.cpp's {codec} ({loss:.2e}); best is "
                              f"{best['codec'] if best else 'none'} ({best['mean_kl'] if best else float('nan'):.2e})")
        figures[title] = series
    pathlib.Path(options.figures).write_text(json.dumps(figures, indent=1) + "\n")
    print("\n" + ("\n".join(behind) if behind else "At every size of llama.cpp's caches there is a codec that is no larger and loses no more."))


main()
