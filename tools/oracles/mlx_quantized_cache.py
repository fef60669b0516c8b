#!/usr/bin/env python3
"""Logits of a tiny model with mlx-lm's QuantizedKVCache on the CPU: what kvasir's affine caches are compared to.

    mlx_quantized_cache.py KVASIR OUT.json

KVASIR writes the checkpoint (`kvasir synth`, float32, a llama of two layers). The prompt runs in one step of 20 tokens, then token by
token, so that prefill and decode both read quantized keys and values. mlx-lm quantizes on append (mlx_lm/models/cache.py); its CPU
encoder is the one that kvasir follows. Values are written with 9 significant digits: float32 exactly.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.utils import load_model

SETTINGS = {"num_hidden_layers": 2, "head_dim": 64, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 64, "vocab_size": 48, "max_position_embeddings": 128}


def main(kvasir, out):
    mx.set_default_device(mx.cpu)
    ids = [(i * 29 + i * i * 5) % SETTINGS["vocab_size"] for i in range(36)]
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        command = [kvasir, "synth", folder + "/model", "--family", "llama", "--size", "tiny", "--format", "f32", "--seed", "3"]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        model, _ = load_model(pathlib.Path(folder) / "model")
        for bits, group in ((8, 64), (8, 32), (6, 64), (5, 64), (4, 64), (4, 32), (3, 64), (2, 64)):
            cache = [QuantizedKVCache(group_size=group, bits=bits) for _ in range(SETTINGS["num_hidden_layers"])]
            rows = [model(mx.array([ids[:20]]), cache=cache)[0]]
            rows += [model(mx.array([[token]]), cache=cache)[0] for token in ids[20:]]
            logits = mx.concatenate(rows).astype(mx.float32)
            mx.eval(logits)
            cases.append({"bits": bits, "group": group, "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]})
    text = json.dumps({"settings": SETTINGS, "seed": 3, "tokens": ids, "cases": cases}, separators=(",", ":"))
    pathlib.Path(out).write_text(text + "\n")


main(*sys.argv[1:])
