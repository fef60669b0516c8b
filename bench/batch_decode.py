#!/usr/bin/env python3
"""Tokens per second against the number of rows in a decode step, with the roofline, as a table and an SVG (standard library only).

    bench/batch_decode.py measure MODEL --kvasir build/release/kvasir --out FIGURES.json [--batches 1,2,4,...] [--rounds N] [--threads N]
    bench/batch_decode.py draw OUT.svg FIGURES.json...

The roofline of B rows is B / max(bytes / read limit, B * operations / arithmetic limit): stored bytes of the weights and of the keys and
values, and the operations of matrix products; limits as `kvasir bench` measures them in the same run. A point is the best of the rounds,
which are interleaved over the batch sizes; the roofline takes the highest limits seen, so that it is a bound for every point.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 520, 360, 70, 44
COLOURS = ["#1f5fa8", "#c2571a", "#2c8a4b", "#7b3fa0"]


def measure(arguments):
    batches = [int(b) for b in arguments.batches.split(",")]
    best, read, peak = {}, 0.0, 0.0
    for _ in range(arguments.rounds):
        for batch in batches:
            command = [arguments.kvasir, "bench", arguments.model, "-p", "0", "-n", arguments.tokens, "--runs", "2", "--batch", batch,
                       "--chunk", max(batches), "-t", arguments.threads, "--force", "--json"]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"batch_decode.py: {' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr.strip()}")
            out = json.loads(done.stdout)
            for when in ("before", "during"):
                if seen := out.get("machine", {}).get("busy_" + when):
                    print(f"{batch} rows: busy {when}: {'; '.join(seen)}", file=sys.stderr)
            read, peak = max(read, out["read_bandwidth_gb_s"]), max(peak, out["peak_arithmetic_gop_s"])
            if batch not in best or out["decode_tokens_per_s"] > best[batch]["decode_tokens_per_s"]:
                best[batch] = out
    points = [{"rows": b, "tokens_per_s": best[b]["decode_tokens_per_s"],
               "bytes": best[b]["decode_weight_bytes"] + best[b]["decode_kv_bytes"],
               "operations": best[b]["decode_operations"]} for b in batches]
    figures = {"title": arguments.title or pathlib.Path(arguments.model).stem, "read_gb_s": read, "peak_gop_s": peak, "points": points}
    pathlib.Path(arguments.out).write_text(json.dumps(figures, indent=1) + "\n")
    table(figures)


def roofline(figures, rows, nbytes, operations):
    return rows / max(nbytes / (figures["read_gb_s"] * 1e9), operations / (figures["peak_gop_s"] * 1e9))


def table(figures):
    print(f"{figures['title']}: read {figures['read_gb_s']:.1f} GB/s, {figures['peak_gop_s']:.0f} Gop/s")
    # Against the fewest rows that were measured, which need not be one.
    least = min(figures["points"], key=lambda p: p["rows"])
    one = least["tokens_per_s"]
    against = "one row" if least["rows"] == 1 else f"{least['rows']} rows"
    print(f"| rows | tokens/s | times {against} | of the roofline |\n| ---: | ---: | ---: | ---: |")
    for p in figures["points"]:
        share = p["tokens_per_s"] / roofline(figures, p["rows"], p["bytes"], p["operations"])
        print(f"| {p['rows']} | {p['tokens_per_s']:.1f} | {p['tokens_per_s'] / one:.2f} | {share:.0%} |")


def draw(out_path, files):
    sets = [json.loads(pathlib.Path(f).read_text()) for f in files]
    tops = [roofline(s, p["rows"], p["bytes"], p["operations"]) for s in sets for p in s["points"]]
    lows = [p["tokens_per_s"] for s in sets for p in s["points"]]
    y_low, y_high = math.floor(math.log10(min(lows)) * 4) / 4, math.ceil(math.log10(max(tops)) * 4) / 4
    # Both axes have a length, also where there is one figure alone.
    x_high = max(1.0, math.log2(max(p["rows"] for s in sets for p in s["points"])))
    y_high = max(y_high, y_low + 0.25)

    def x(rows):
        return LEFT + math.log2(rows) / x_high * WIDTH

    def y(value):
        return TOP + (y_high - math.log10(value)) / (y_high - y_low) * HEIGHT

    height = TOP + HEIGHT + 60 + 20 * len(sets)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" font-family="sans-serif">',
           "<style>.title{font-size:15px;font-weight:bold}.tick{font-size:11px;fill:#444}.grid{stroke:#ddd}.key{font-size:12px}</style>",
           f'<rect width="{LEFT + WIDTH + 30}" height="{height}" fill="white"/>',
           f'<text class="title" x="{LEFT}" y="24">Decode: tokens per second against rows in a step</text>']
    value = 10.0 ** math.floor(y_low)
    while value <= 10.0 ** y_high:
        for step in (1, 2, 5):
            if y_low <= math.log10(value * step) <= y_high:
                at = y(value * step)
                out.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
                out.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{at + 4:.1f}">{value * step:g}</text>')
        value *= 10
    bottom = TOP + HEIGHT
    for power in range(int(x_high) + 1):
        at = x(2 ** power)
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
        out.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{bottom + 16}">{2 ** power}</text>')
    out.append(f'<text class="tick" text-anchor="middle" x="{LEFT + WIDTH / 2}" y="{bottom + 34}">rows</text>')
    for i, figures in enumerate(sets):
        colour, points = COLOURS[i % len(COLOURS)], figures["points"]
        roof = " ".join(f"{x(p['rows']):.1f},{y(roofline(figures, p['rows'], p['bytes'], p['operations'])):.1f}" for p in points)
        line = " ".join(f"{x(p['rows']):.1f},{y(p['tokens_per_s']):.1f}" for p in points)
        out.append(f'<polyline points="{roof}" fill="none" stroke="{colour}" stroke-dasharray="5 4"/>')
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for p in points:
            out.append(f'<circle cx="{x(p["rows"]):.1f}" cy="{y(p["tokens_per_s"]):.1f}" r="3.5" fill="{colour}">'
                       f'<title>{p["rows"]} rows: {p["tokens_per_s"]:.0f} tokens/s</title></circle>')
        at = bottom + 56 + 20 * i
        out.append(f'<circle cx="{LEFT + 5}" cy="{at - 4}" r="4" fill="{colour}"/>')
        out.append(f'<text class="key" x="{LEFT + 16}" y="{at}">{escape(figures["title"])} (dashed: roofline at {figures["read_gb_s"]:.0f} GB/s, '
                   f'{figures["peak_gop_s"]:.0f} Gop/s)</text>')
    out.append("</svg>")
    pathlib.Path(out_path).write_text("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("model")
    one.add_argument("--kvasir", default="build/release/kvasir")
    one.add_argument("--out", required=True)
    one.add_argument("--title")
    one.add_argument("--batches", default="1,2,4,8,16,32,64")
    one.add_argument("--rounds", type=int, default=1)
    one.add_argument("--tokens", type=int, default=16)
    one.add_argument("--threads", type=int, default=2)
    two = commands.add_parser("draw")
    two.add_argument("svg")
    two.add_argument("figures", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments)
    else:
        draw(arguments.svg, arguments.figures)
        for file in arguments.figures:
            table(json.loads(pathlib.Path(file).read_text()))


if __name__ == "__main__":
    main()
