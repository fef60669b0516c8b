#!/usr/bin/env python3
"""Of which families kvasir and mlx-lm keep the same keys and values: src/models/mlx_lm.cc lists those.

    mlx_prompt_cache_families.py KVASIR [FAMILY ...]

KVASIR writes a checkpoint of random weights of each family (`kvasir synth`, float32), runs 40 tokens over it, stores the row and exports it
(`kv export --format mlx-lm`; a family must be in the list for that). mlx-lm, on the CPU, runs the same tokens over the same checkpoint, 30 at
once and then one by one, and loads kvasir's file. Every key and value that both store is compared. Printed are, for each family, mlx-lm's
classes of caches, kvasir's, and the largest difference relative to the largest value.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache
from mlx_lm.utils import load_model

FAMILIES = """apertus cohere cohere2 ernie4_5 exaone exaone4 gemma gemma2 gemma3_text glm glm4 granite helium hunyuan_v1_dense internlm2 internlm3
lille-130m llama mimo minicpm ministral3 mistral nemotron olmo2 olmo3 phi phi3 plamo qwen2 qwen3 qwen3_moe seed_oss smollm3 stablelm
starcoder2 telechat3""".split()

# What mlx-lm wants to be said, where the family's defaults are kvasir's.
EXTRA = {"apertus": {"mlp_bias": False, "attention_bias": False, "post_norm": False, "qk_norm": True}, "granite": {"attention_bias": False, "mlp_bias": False},
         "helium": {"attention_bias": False, "mlp_bias": False}, "exaone": {"num_layers": 4, "layer_norm_epsilon": 1e-5},
         "exaone4": {"head_dim": 16, "rope_scaling": None}, "lille-130m": {"block_size": 64}, "seed_oss": {"attention_bias": True}}
SET = {"cohere2": ["--set", "head_dim=16"]}
FORMAT = {"qwen3_moe": "mlx-affine-8-32"}  # mlx-lm does not read its fused experts in float32


def stored(cache):
    """Position -> key and value [heads, channels] of what a cache holds."""
    if hasattr(cache, "_idx"):
        keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    else:
        keys, values = cache.keys[..., :cache.offset, :], cache.values[..., :cache.offset, :]
    first = cache.offset - keys.shape[2]
    keys, values = np.array(keys.astype(mx.float32))[0], np.array(values.astype(mx.float32))[0]
    return {first + i: (keys[:, i], values[:, i]) for i in range(keys.shape[1])}


def compare(kvasir, family, work, window):
    def run(*words):
        done = subprocess.run([kvasir, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[0])
    folder = work / family
    run("synth", folder, "--family", family, "--size", "tiny", "--format", FORMAT.get(family, "f32"), "--seed", 3, *(["--set", f"sliding_window={window}"] if window else []), *SET.get(family, []))
    config = json.loads((folder / "config.json").read_text())
    ids = [(i * 29 + i * i * 5) % config["vocab_size"] for i in range(40)]
    (work / "ids.json").write_text(json.dumps(ids))
    run("eval", "logits", folder, "--tokens", work / "ids.json", "--out", work / "x.npy", "--activations", "f32", "--kv", "f32", "--save-at", 40, work / ("store-" + family))
    run("kv", "export", "eval-logits", work / "x.safetensors", "--format", "mlx-lm", "--prompt-cache-dir", work / ("store-" + family))
    ours = load_prompt_cache(str(work / "x.safetensors"))
    (folder / "config.json").write_text(json.dumps({**EXTRA.get(family, {}), **config}))
    model, _ = load_model(folder)
    theirs = make_prompt_cache(model)
    classes = [sorted({type(c).__name__ for c in caches}) for caches in (theirs, ours)]
    model(mx.array([ids[:30]]), cache=theirs)
    for token in ids[30:]:
        model(mx.array([[token]]), cache=theirs)
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    worst, compared = 0.0, 0
    for a, b in zip(ours, theirs):
        assert a.offset == b.offset == 40
        left, right = stored(a), stored(b)
        for position in left.keys() & right.keys():
            for x, y in zip(left[position], right[position]):
                assert x.shape == y.shape, (x.shape, y.shape)
                worst = max(worst, float(np.abs(x - y).max() / np.abs(y).max()))
                compared += 1
    return classes, worst, compared


def main(kvasir, *families):
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as work:
        for family in families or FAMILIES:
            for window in (0, 12, 64):
                try:
                    (theirs, ours), worst, compared = compare(kvasir, family, pathlib.Path(work), window)
                    print(f"{family} window {window}: mlx-lm {'+'.join(theirs)}, kvasir {'+'.join(ours)}: {compared} rows, {worst:.1e}", flush=True)
                except Exception as error:
                    print(f"{family} window {window}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                subprocess.run(["rm", "-rf", str(pathlib.Path(work) / family), str(pathlib.Path(work) / ("store-" + family))])


main(*sys.argv[1:])
