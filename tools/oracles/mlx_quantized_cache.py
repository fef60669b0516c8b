#!/usr/bin/env python3
"""Logits of a tiny model with mlx-lm's QuantizedKVCache on the CPU: what kvasir's affine caches are compared to.

    mlx_quantized_cache.py KVASIR OUT.json

KVASIR writes the checkpoint (`kvasir synth`, float32, a llama of two layers). The prompt runs in one step of 20 tokens, then token by
token, so that prefill and decode both read quantized keys and values. mlx-lm quantizes on append (mlx_lm/models/cache.py); its CPU
encoder is the one that kvasir follows. Values are written with 9 significant digits: float32 exactly.

Beside the logits stand the stored codes, and the ties: elements whose place between two codes is within 2e-4 of the middle. Two float32
implementations differ in the last bits of a key, and a tie may then go either way; everything else is the same. The seed is one of few whose
ties are all further than 2.5e-5 from the middle.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.utils import load_model

SETTINGS = {"num_hidden_layers": 2, "head_dim": 64, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 64, "vocab_size": 48, "max_position_embeddings": 128}
SEED, TIE = 62, 2e-4


class Recording(QuantizedKVCache):
    """Keeps what it was given beside what it makes of it."""
    def update_and_fetch(self, keys, values):
        self.given = getattr(self, "given", []) + [(np.array(keys)[0, 0], np.array(values)[0, 0])]
        return super().update_and_fetch(keys, values)


def places(x, bits, group):
    """Where each element lies in units of codes, by the rule of MLX's CPU encoder in float64."""
    x = x.astype(np.float64).reshape(len(x), -1, group)
    low, high, top = x.min(-1), x.max(-1), 2 ** bits - 1
    end, scale = np.where(abs(low) > abs(high), low, high), (high - low) / top
    scale = np.where(abs(low) > abs(high), scale, -scale)
    zero = np.rint(end / scale)
    scale, bias = np.where(zero != 0, end / np.where(zero != 0, zero, 1), scale), np.where(zero != 0, end, 0)
    return ((x - bias[..., None]) / scale[..., None]).reshape(len(x), -1)


def unpack(words, bits):
    """[tokens, channels] codes of MLX's packed 32-bit words (a little-endian stream)."""
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").reshape(len(words), -1, bits)
    return (stream.astype(np.uint32) << np.arange(bits, dtype=np.uint32)).sum(-1)


def main(kvasir, out):
    mx.set_default_device(mx.cpu)
    ids = [(i * 29 + i * i * 5) % SETTINGS["vocab_size"] for i in range(36)]
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        command = [kvasir, "synth", folder + "/model", "--family", "llama", "--size", "tiny", "--format", "f32", "--seed", str(SEED)]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        model, _ = load_model(pathlib.Path(folder) / "model")
        for bits, group in ((8, 64), (8, 32), (6, 64), (5, 64), (4, 64), (4, 32), (3, 64), (2, 64)):
            cache = [Recording(group_size=group, bits=bits) for _ in range(SETTINGS["num_hidden_layers"])]
            rows = [model(mx.array([ids[:20]]), cache=cache)[0]]
            rows += [model(mx.array([[token]]), cache=cache)[0] for token in ids[20:]]
            logits = mx.concatenate(rows).astype(mx.float32)
            mx.eval(logits)
            codes, ties, nearest = [], [], 1.0
            for layer, kept in enumerate(cache):
                for plane, stored in enumerate((kept.keys, kept.values)):
                    place = places(np.concatenate([given[plane] for given in kept.given]), bits, group)
                    found = unpack(np.array(stored[0])[0, 0, :len(ids)], bits)
                    assert (abs(found - place) <= 0.501)[(place > 0) & (place < 2 ** bits - 1)].all()
                    off = abs(place - np.floor(place) - 0.5)
                    off[(place < -0.5) | (place > 2 ** bits - 0.5)] = 1
                    nearest = min(nearest, off.min())
                    ties += [[layer, plane, int(t), int(c)] for t, c in zip(*np.nonzero(off < TIE))]
                    codes.append(found.astype(np.uint8).tobytes().hex())
            print(f"{bits} bits, groups of {group}: {len(ties)} ties, the nearest {nearest:.1e} from the middle")
            cases.append({"bits": bits, "group": group, "codes": codes, "ties": ties, "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]})
    text = json.dumps({"settings": SETTINGS, "seed": SEED, "tokens": ids, "cases": cases}, separators=(",", ":"))
    pathlib.Path(out).write_text(text + "\n")


main(*sys.argv[1:])
