#!/usr/bin/env python3
"""Prompt caches as mlx-lm writes them, and what it goes on to compute: what kvasir's importer and exporter are compared to.

    mlx_prompt_cache.py KVASIR OUT_FOLDER OLD_MLX_LM

KVASIR writes the checkpoints (`kvasir synth`, float32: a llama, and a gemma3_text with windows of 6). mlx-lm, on the CPU, computes the prompt,
saves its cache, and goes on token by token. Beside the files stands cases.json: the checkpoints' settings, the tokens, and for every case the
file, kvasir's codec for it, and the logits of the tokens after the prompt, with 9 significant digits.

The installed mlx-lm is of 0.32 or later; OLD_MLX_LM is a folder with an unpacked mlx-lm of before (0.31.3: `pip download --no-deps`), whose
caches and writer give the cases "before". Caches grow in steps of 8 columns in place of 256, which shows in nothing but the files' size.

Then KVASIR imports every file, exports it in both forms, and mlx-lm goes on from that: printed are the largest differences of logits.
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import mlx_lm.models.cache as new
from mlx.utils import tree_map
from mlx_lm.utils import load_model

COMMON = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 48, "max_position_embeddings": 128}
MODELS = {"llama": {"seed": 62, "settings": {**COMMON, "num_hidden_layers": 2, "head_dim": 64}},
          "gemma3_text": {"seed": 5, "settings": {**COMMON, "hidden_size": 64, "num_hidden_layers": 3, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 6, "sliding_window_pattern": 3}}}
# A gemma's embedding is multiplied by the root of hidden_size, which mlx-lm rounds to bf16 whatever the checkpoint's dtype is: 8 has no digits to lose.
IDS = [(i * 29 + i * i * 5) % 48 for i in range(16)]
PROMPT = 10  # tokens of IDS; the others come after it
# Name, family, form, chunks of the prompt, what becomes of a plain cache.
CASES = [("llama-f32", "llama", "new", [10], "f32"), ("llama-f32-before", "llama", "before", [10], "f32"), ("llama-bf16", "llama", "new", [10], "bf16"),
         *[(f"llama-q{b}-{g}", "llama", "new", [10], (b, g)) for b in (8, 4) for g in (64, 32)], ("llama-q8-64-before", "llama", "before", [10], (8, 64)),
         ("gemma-short", "gemma3_text", "new", [4], "f32"), ("gemma-long", "gemma3_text", "new", [10], "f32"), ("gemma-chunks", "gemma3_text", "new", [4, 6], "f32"),
         ("gemma-turned", "gemma3_text", "new", [4, 1, 1, 1, 1, 1, 1], "f32"), ("gemma-short-before", "gemma3_text", "before", [4], "f32"),
         ("gemma-turned-before", "gemma3_text", "before", [4, 1, 1, 1, 1, 1, 1], "f32")]


def module_of(folder):
    """mlx_lm.models.cache of another version."""
    spec = importlib.util.spec_from_file_location("mlx_lm.models.cache_before", pathlib.Path(folder) / "mlx_lm" / "models" / "cache.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_cache(module, model, how):
    window = getattr(model.args, "sliding_window", None) if model.model_type == "gemma3_text" else None
    if isinstance(how, tuple):
        return [module.QuantizedKVCache(bits=how[0], group_size=how[1]) for _ in model.layers]
    pattern = model.args.sliding_window_pattern if window else 1
    return [module.KVCache() if i % pattern == pattern - 1 else module.RotatingKVCache(max_size=window, keep=0) for i in range(len(model.layers))]


def go_on(model, cache, ids):
    rows = [model(mx.array([[token]]), cache=cache)[0] for token in ids]
    logits = mx.concatenate(rows).astype(mx.float32)
    mx.eval(logits)
    return logits


def spec_of(how):
    return f"affine:{how[0]}:{how[1]}:f32" if isinstance(how, tuple) else how


def main(kvasir, out, old_folder):
    mx.set_default_device(mx.cpu)
    modules = {"new": new, "before": module_of(old_folder)}
    for module in modules.values():
        for kind in (module.KVCache, module.QuantizedKVCache, module.RotatingKVCache):
            kind.step = 8
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    cases = []
    with tempfile.TemporaryDirectory() as work:
        work, models = pathlib.Path(work), {}
        for family, model in MODELS.items():
            command = [kvasir, "synth", work / family, "--family", family, "--size", "tiny", "--format", "f32", "--seed", str(model["seed"])]
            for key, value in model["settings"].items():
                command += ["--set", f"{key}={value}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            models[family], _ = load_model(work / family)
        for name, family, form, chunks, how in CASES:
            module, model = modules[form], models[family]
            cache, done = make_cache(module, model, how), 0
            for chunk in chunks:
                model(mx.array([IDS[done:done + chunk]]), cache=cache)
                done += chunk
            if how == "bf16":
                for c in cache:
                    c.keys, c.values = c.keys.astype(mx.bfloat16), c.values.astype(mx.bfloat16)
            file = f"{name}.safetensors"
            module.save_prompt_cache(str(out / file), cache, {"model": "mlx-community/tiny", "tokenizer_config": "{}"})
            logits = go_on(model, cache, IDS[done:])
            cases.append({"name": name, "file": file, "family": family, "kv": spec_of(how), "prompt": done, "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]})

            # The other direction.
            (work / "ids.json").write_text(json.dumps(IDS[:done]))
            store = ["--prompt-cache-dir", work / "store"]
            subprocess.run([kvasir, "kv", "import", out / file, work / family, "--name", name, "--tokens", work / "ids.json", "--kv", spec_of(how), "--activations", "f32", *store],
                           check=True, stdout=subprocess.DEVNULL)
            for back, flag in (("new", "mlx-lm"), ("before", "mlx-lm-0.31")):
                subprocess.run([kvasir, "kv", "export", name, work / "back.safetensors", "--format", flag, *store], check=True, stdout=subprocess.DEVNULL)
                again, metadata = modules[back].load_prompt_cache(str(work / "back.safetensors"), return_metadata=True)
                assert json.loads(metadata["tokens"]) == IDS[:done]
                difference = mx.abs(go_on(model, again, IDS[done:]) - logits).max().item()
                print(f"{name}: {', '.join(sorted({type(c).__name__ for c in again}))} from kvasir ({flag}): logits within {difference:.1e}")
    text = json.dumps({"models": MODELS, "tokens": IDS, "cases": cases}, separators=(",", ":"))
    (out / "cases.json").write_text(text + "\n")


main(*sys.argv[1:])
