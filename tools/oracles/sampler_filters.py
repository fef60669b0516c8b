#!/usr/bin/env python3
"""Goldens for the sampler: which tokens survive each filter, and logits after penalties, by mlx-lm's own functions.

    python tools/oracles/sampler_filters.py tests/data/engine/sampler_filters.json

Needs: mlx[cpu], mlx-lm, numpy. Deterministic (numpy seeds).
"""
import json
import sys

import mlx.core as mx
import numpy as np
from mlx_lm import sample_utils as su

VOCAB = 97


def survivors(values):
    a = np.array(values)[0]
    return [int(i) for i in np.nonzero(np.isfinite(a))[0]]


def main(out):
    cases = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        logits = (rng.standard_normal(VOCAB) * (1 + seed % 4)).astype(np.float32)
        logprobs = mx.array(logits)[None] - mx.logsumexp(mx.array(logits)[None], axis=-1, keepdims=True)
        case = {"logits": [float(x) for x in logits], "filters": [], "penalties": []}
        for p in (0.1, 0.5, 0.9, 0.99):
            case["filters"].append({"top_p": p, "ids": survivors(su.apply_top_p(logprobs, p))})
        for p in (0.02, 0.1, 0.5):
            case["filters"].append({"min_p": p, "ids": survivors(su.apply_min_p(logprobs, p))})
        for k in (1, 5, 40):
            case["filters"].append({"top_k": k, "ids": survivors(su.apply_top_k(logprobs, k))})
        history = [int(t) for t in rng.integers(0, VOCAB, 50)]
        case["history"] = history
        tokens = mx.array(history)
        for kind, make, value in (
            ("repetition", su.make_repetition_penalty, 1.3),
            ("presence", su.make_presence_penalty, 0.7),
            ("frequency", su.make_frequency_penalty, 0.4),
        ):
            for context in (5, 20):
                result = make(value, context)(tokens, mx.array(logits)[None])
                case["penalties"].append(
                    {"kind": kind, "value": value, "context": context, "logits": [float(x) for x in np.array(result)[0]]}
                )
        cases.append(case)
    with open(out, "w") as f:
        json.dump(cases, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
