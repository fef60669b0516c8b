#!/usr/bin/env python3
"""Compares two files of logits (.npy, [T, V]): Kullback-Leibler divergence and agreement, streamed.

    kl.py REFERENCE.npy OTHER.npy [--rows FROM:TO] [--json]

KL is D(reference || other) per position in nats, from log-softmax in float64 (numpy only). `top1` is the share of positions
whose most likely id is the same. Files may be larger than memory.
"""

import argparse
import json
import sys

import numpy as np

BLOCK_ELEMENTS = 1 << 17  # computed at once: float64 copies of them stay in a core's cache


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


def compare(reference, other, rows=slice(None)):
    """Both arguments: paths or arrays [T, V]. Returns a dict of figures; raises ValueError for shapes that differ."""
    a, b = (np.load(x, mmap_mode="r") if not isinstance(x, np.ndarray) else x for x in (reference, other))
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    a, b = a[rows], b[rows]
    kl, same, worst, largest = [], 0, 0.0, 0.0
    block = max(1, BLOCK_ELEMENTS // a.shape[1])
    for start in range(0, len(a), block):
        p_raw, q_raw = a[start:start + block], b[start:start + block]
        if not np.isfinite(q_raw).all():
            raise ValueError(f"not finite in rows {start} to {start + len(q_raw) - 1}")
        worst = max(worst, float(np.abs(p_raw - q_raw).max()))
        largest = max(largest, float(np.abs(p_raw).max()))
        same += int((p_raw.argmax(axis=1) == q_raw.argmax(axis=1)).sum())
        p, q = log_softmax(p_raw), log_softmax(q_raw)
        kl.extend((np.exp(p) * (p - q)).sum(axis=1))
    kl = np.array(kl)
    return {"positions": len(kl), "mean_kl": float(kl.mean()),
            "standard_error": float(kl.std() / np.sqrt(len(kl))), "median_kl": float(np.median(kl)),
            "p99_kl": float(np.quantile(kl, 0.99)), "max_kl": float(kl.max()), "top1": same / len(kl),
            "max_abs_difference": worst, "max_abs_reference": largest}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("other")
    parser.add_argument("--rows", default=":", help="half-open range of positions, such as 0:2048")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    begin, end = (int(x) if x else None for x in arguments.rows.split(":"))
    try:
        figures = compare(arguments.reference, arguments.other, slice(begin, end))
    except (OSError, ValueError) as error:
        sys.exit(f"kl.py: {error}")
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:.6g}")


if __name__ == "__main__":
    main()
