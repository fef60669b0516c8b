#!/usr/bin/env python3
"""Quality of KV codecs against their size: measures, prints a table, compares with llama.cpp's caches, and writes the input of plot_kv.py.

    tools/kv_quality.py KVASIR --model "SmolLM2-135M:smollm2:MODEL.gguf:IDS.json" --model "Gemma 3 270M:gemma3:MODEL.gguf:IDS.json" \\
        --llama llama_kl.json --kept FOLDER --figures figures.json

A --model is TITLE:NAME:FILE:IDS, NAME being its key in llama_kl.json and IDS a JSON list of token ids, of which the first --tokens are used.
Every codec runs in all layers at once against an f32 cache of the same model (`kvasir eval kv-sensitivity --together`), with `--activations f32
--kv-plain f16`, so that the cache alone is in error. llama.cpp's figures are those of weights in F32 for the same reason. What was measured is
kept in FOLDER/NAME.json after every codec, and is not measured again: an interrupted run goes on. A codec is behind llama.cpp's frontier
when a cache of llama.cpp's that is no larger loses no more.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

LLAMA_BITS = {"q8_0": 8.5, "q5_0": 5.5, "q4_0": 4.5}
CODECS = ["f16", "bf16", "q8_0", "rot:q8_0", "rot:q6_0", "q5_0", "rot:q5_0", "q4_0", "rot:q4_0", "rot:q3_0", "affine:8", "affine:8:32", "rot:8", "affine:6", "affine:5", "rot:5", "affine:4", "affine:4:32",
          "rot:4", "affine:3", "rot:3", "affine:2", "rot:2", "turbo:8,8", "turbo:8,5", "turbo:8,4", "turbo:8,3", "turbo:5,4", "turbo:4,3",
          "rot:q8_0/rot:5", "rot:q8_0/rot:4", "rot:5/rot:4", "rot:4/rot:3"]


def family(codec):
    if "/" in codec:
        return "pairs"
    name = codec.split(":")[0]
    if name in ("f16", "bf16"):
        return "plain"
    if codec.endswith("_0"):
        return "rot:qN_0" if codec.startswith("rot:") else "qN_0"
    return f"affine, groups of {codec.split(':')[2]}" if name == "affine" and codec.count(":") == 2 else name


def measure(options, name, model, ids):
    """The points of all codecs, from the kept file or measured now."""
    kept = pathlib.Path(options.kept) / f"{name}.json"
    points = json.loads(kept.read_text()) if kept.exists() else []
    known = {point["codec"] for point in points}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(json.loads(pathlib.Path(ids).read_text())[:options.tokens]))
        file.flush()
        codecs = options.codec or CODECS
        # f16 tells how many elements a token has.
        for codec in codecs if "f16" in codecs else ["f16", *codecs]:
            if codec in known:
                continue
            command = [options.kvasir, "eval", "kv-sensitivity", model, "--tokens", file.name, "--activations", "f32", "--kv-plain", "f16",
                       "--together", codec, "--json"]
            if options.threads:
                command += ["--threads", str(options.threads)]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                raise SystemExit(f"{name}: {codec}: {run.stderr.strip()}")
            points += json.loads(run.stdout)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(points, indent=1) + "\n")
    return points


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--codec", action="append", help="measure these in place of the usual ones")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--kept", required=True)
    parser.add_argument("--figures", required=True)
    options = parser.parse_args()
    llama = json.loads(pathlib.Path(options.llama).read_text())
    figures, behind = {}, []
    for entry in options.model:
        title, name, model, ids = entry.split(":", 3)
        points = measure(options, name, model, ids)
        # Every codec's bytes are those of its bits; f16 tells how many elements a token has.
        elements = next(p["bytes_per_token"] // 2 for p in points if p["codec"] == "f16" and p["layers"] == "all")
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
