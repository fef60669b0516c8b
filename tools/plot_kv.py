#!/usr/bin/env python3
"""Draws quality against size of KV caches as an SVG (standard library only).

    tools/plot_kv.py FIGURES.json OUT.svg

FIGURES.json: {"title of a panel": {"series": [{"label", "bytes_per_token", "mean_kl"}, ...], ...}, ...}. One panel a model; x is bytes
per token and y the mean KL divergence to the f32 cache, both logarithmic: lower and further left is better.
"""

import json
import math
import pathlib
import sys

WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP, GAP = 430, 340, 62, 44, 34
COLOURS = ["#1f5fa8", "#c2571a", "#2c8a4b", "#7b3fa0", "#8a6d1b", "#555555", "#b3286e", "#12908e"]


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Panel:
    def __init__(self, left, title, series):
        self.left, self.title, self.series = left, title, series
        points = [p for line in series.values() for p in line if p["mean_kl"] > 0]
        sizes, losses = [p["bytes_per_token"] for p in points], [p["mean_kl"] for p in points]
        self.x_range = math.log(min(sizes)) - 0.12, math.log(max(sizes)) + 0.12
        self.y_range = math.floor(math.log10(min(losses))), math.ceil(math.log10(max(losses)))
        self.labels = []  # (x, y, colour, text)

    def x(self, size):
        low, high = self.x_range
        return self.left + (math.log(size) - low) / (high - low) * WIDTH

    def y(self, loss):
        low, high = self.y_range
        return MARGIN_TOP + (high - math.log10(loss)) / (high - low) * HEIGHT

    def draw(self, out, colours):
        bottom = MARGIN_TOP + HEIGHT
        out.append(f'<text class="title" x="{self.left}" y="{MARGIN_TOP - 16}">{escape(self.title)}</text>')
        for power in range(self.y_range[0], self.y_range[1] + 1):
            y = self.y(10.0 ** power)
            out.append(f'<line class="grid" x1="{self.left}" x2="{self.left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
            out.append(f'<text class="tick" text-anchor="end" x="{self.left - 6}" y="{y + 4:.1f}">1e{power}</text>')
        for kib in (m * 2.0 ** e for e in range(-3, 12) for m in (1, 1.5)):
            if not self.x_range[0] <= math.log(kib * 1024) <= self.x_range[1]:
                continue
            x = self.x(kib * 1024)
            out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN_TOP}" y2="{bottom}"/>')
            out.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 16}">{kib:g} KiB</text>')
        out.append(f'<text class="tick" text-anchor="middle" x="{self.left + WIDTH / 2}" y="{bottom + 34}">bytes per token</text>')
        for name, line in self.series.items():
            colour = colours[name]
            points = sorted((p for p in line if p["mean_kl"] > 0), key=lambda p: p["bytes_per_token"])
            path = " ".join(f"{self.x(p['bytes_per_token']):.1f},{self.y(p['mean_kl']):.1f}" for p in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            for p in points:
                x, y = self.x(p["bytes_per_token"]), self.y(p["mean_kl"])
                out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{escape(name)} {escape(p["label"])}: '
                           f'{p["bytes_per_token"]:.0f} bytes, {p["mean_kl"]:.2e}</title></circle>')
                self.labels.append((x, y, colour, p["label"] if name != "llama.cpp" else f"llama.cpp {p['label']}"))
        self.draw_labels(out)

    def draw_labels(self, out):
        """Labels right of their points, moved down where two would lie on each other; left of them where the right edge is near."""
        drawn = []
        for x, y, colour, text in sorted(self.labels, key=lambda label: label[1]):
            left = x + 8 + 6 * len(text) > self.left + WIDTH
            begin, at = (x - 8 - 6 * len(text) if left else x + 7), y + 3.5
            while any(abs(at - other_at) < 11 and begin < other_end and other < begin + 6 * len(text) for other, other_end, other_at in drawn):
                at += 1
            drawn.append((begin, begin + 6 * len(text), at))
            anchor = f'text-anchor="end" x="{x - 7:.1f}"' if left else f'x="{x + 7:.1f}"'
            out.append(f'<text class="label" fill="{colour}" {anchor} y="{at:.1f}">{escape(text)}</text>')


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    figures = json.loads(pathlib.Path(sys.argv[1]).read_text())
    step = MARGIN_LEFT + WIDTH + GAP
    width = step * len(figures)
    names = list(dict.fromkeys(name for series in figures.values() for name in series))
    key, x, row = [], MARGIN_LEFT, 0  # (name, x, row)
    for name in names:
        if x > MARGIN_LEFT and x + 20 + 7.5 * len(name) > width:
            x, row = MARGIN_LEFT, row + 1
        key.append((name, x, row))
        x += 30 + 7.5 * len(name)
    height = MARGIN_TOP + HEIGHT + 66 + 18 * row
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif">',
           "<style>.title{font-size:15px;font-weight:bold}.tick{font-size:11px;fill:#444}.label{font-size:10.5px}"
           ".grid{stroke:#ddd;stroke-width:1}.key{font-size:12px}</style>",
           f'<rect width="{width}" height="{height}" fill="white"/>']
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for i, (title, series) in enumerate(figures.items()):
        Panel(MARGIN_LEFT + i * step, title, series).draw(out, colours)
    for name, x, line in key:
        y = MARGIN_TOP + HEIGHT + 52 + 18 * line
        out.append(f'<circle cx="{x + 5}" cy="{y}" r="4" fill="{colours[name]}"/>')
        out.append(f'<text class="key" x="{x + 14}" y="{y + 4}">{escape(name)}</text>')
    out.append("</svg>")
    pathlib.Path(sys.argv[2]).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
