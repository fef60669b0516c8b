#!/usr/bin/env python3
"""transformers and mlx-lm on the CPU, on the weights of a GGUF file: prefill and decode in tokens per second, as JSON.

    python_peers.py MODEL.gguf [--engine transformers|mlx]... [--work DIR] [--threads N] [--rounds N] [--prompt N] [--tokens N]

transformers runs bfloat16 (weights de-quantized by its own GGUF loading). mlx-lm needs a folder, so the same weights are saved once
under --work and quantized by mlx-lm to 4 bits, groups of 32 (5 bits a weight with scales and biases: near Q4_1).
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

# Tokens of a prompt and tokens after it. MLX's quantized products on the CPU run at a third of a GFLOP/s: 512 tokens of a 135M model
# take seven minutes.
LENGTHS = {"transformers": (512, 32), "mlx": (16, 4)}


def rates(prefill, decode_step, rounds, prompt, new):
    """prefill(): processes `prompt` tokens and returns a state; decode_step(state): one more token."""
    figures = {"prefill": [], "decode": []}
    for _ in range(rounds + 1):  # the first round warms up
        start = time.perf_counter()
        state = prefill()
        middle = time.perf_counter()
        for _ in range(new):
            decode_step(state)
        end = time.perf_counter()
        figures["prefill"].append(prompt / (middle - start))
        figures["decode"].append(new / (end - middle))
    return {name: statistics.median(values[1:]) for name, values in figures.items()}


def load_transformers(path, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=getattr(torch, dtype)).eval()


def run_transformers(path, threads, rounds, work, length):
    import torch

    torch.set_num_threads(threads)
    model = load_transformers(path, "bfloat16")
    prompt = torch.arange(100, 100 + length[0])[None]
    token = torch.tensor([[100]])

    def prefill():
        return model(prompt, use_cache=True, logits_to_keep=1).past_key_values

    def decode_step(cache):
        model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)

    with torch.no_grad():
        return rates(prefill, decode_step, rounds, *length)


def run_mlx(path, threads, rounds, work, length):
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.convert import convert
    from mlx_lm.models.cache import make_prompt_cache

    mx.set_default_device(mx.cpu)
    folder, quantized = work / f"{path.stem}-hf", work / f"{path.stem}-mlx4"
    if not quantized.exists():
        from transformers import AutoTokenizer

        plain = load_transformers(path, "bfloat16")
        plain.hf_quantizer = None  # its weights are plain ones by now; transformers would not save them otherwise
        if hasattr(plain.config, "quantization_config"):
            del plain.config.quantization_config
        plain.save_pretrained(folder)
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
        convert(str(folder), str(quantized), quantize=True, q_bits=4, q_group_size=32)
    model, _ = load(str(quantized))
    prompt = mx.arange(100, 100 + length[0])[None]
    token = mx.array([[100]])

    def prefill():
        cache = make_prompt_cache(model)
        mx.eval(model(prompt, cache=cache)[:, -1])
        return cache

    def decode_step(cache):
        mx.eval(model(token, cache=cache))

    return rates(prefill, decode_step, rounds, *length)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    engines = {"transformers": run_transformers, "mlx": run_mlx}
    parser.add_argument("--engine", choices=engines, action="append")
    parser.add_argument("--work", type=pathlib.Path, help="folder that keeps mlx-lm's copy (default: a temporary one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, help="tokens of the prompt (default: 512, of mlx 16)")
    parser.add_argument("--tokens", type=int, help="tokens after it (default: 32, of mlx 4)")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or pathlib.Path(temporary)
        for name in arguments.engine or engines:
            length = (arguments.prompt or LENGTHS[name][0], arguments.tokens or LENGTHS[name][1])
            results[name] = engines[name](arguments.model, arguments.threads, arguments.rounds, work, length)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
