#!/usr/bin/env python3
"""Tiny random checkpoints through llama.cpp's own converter, against transformers in float32.

    converted_gguf.py --kvasir build/release/kvasir --llama-cpp SOURCES --tokenizer tokenizer.model

transformers writes a random model with its rope factors, convert_hf_to_gguf.py makes an F32 GGUF of it (`rope_freqs` for llama3,
`rope_factors_long/short` for longrope, rows of q and k permuted), and `kvasir eval logits` must give transformers' logits for it and for
the folder, to 2e-4 of the largest. --tokenizer is a sentencepiece model: the converter wants one. Nothing is written; exits 1 on a difference.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

COMMON = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=32768,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.05 * i for i in range(8)], long_factor=[1.5 + 0.3 * i for i in range(8)],
                original_max_position_embeddings=32)
CASES = {
    "llama, llama3": ("llama", dict(head_dim=16, rope_parameters=LLAMA3)),
    "llama, llama3, one KV head": ("llama", dict(head_dim=32, num_key_value_heads=1, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "llama, yarn": ("llama", dict(rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0))),
    "phi3, longrope": ("phi3", dict(rope_parameters=LONGROPE, original_max_position_embeddings=32, sliding_window=None)),
    "gemma2": ("gemma2", dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=16, tie_word_embeddings=True)),
    "gemma3": ("gemma3_text", dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=16, tie_word_embeddings=True, num_hidden_layers=6)),
    "mistral": ("mistral", dict(head_dim=16, sliding_window=None)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvasir", "llama-cpp", "tokenizer"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    ids = [(i * i * 7 + i * 131 + 5) % 30000 + 300 for i in range(64)]
    failed = False
    for name, (kind, change) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            torch.manual_seed(1)
            config = transformers.AutoConfig.for_model(kind, **{**COMMON, **change})
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim < 2:
                        parameter.add_(torch.randn_like(parameter) * 0.1)
                    else:
                        parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
                want = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
            model.save_pretrained(folder / "hf")
            shutil.copy(arguments.tokenizer, folder / "hf/tokenizer.model")
            done = subprocess.run([sys.executable, arguments.llama_cpp / "convert_hf_to_gguf.py", folder / "hf", "--outtype", "f32", "--outfile",
                                   folder / "m.gguf"], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{name}: not converted: {done.stderr.strip().splitlines()[-1][:200]}")
                continue
            (folder / "ids.json").write_text(json.dumps(ids))
            for form, path in (("gguf", folder / "m.gguf"), ("folder", folder / "hf")):
                done = subprocess.run([arguments.kvasir, "eval", "logits", path, "--tokens", folder / "ids.json", "--out", folder / "out.npy",
                                       "--activations", "f32"], capture_output=True, text=True)
                if done.returncode != 0:
                    print(f"{name}, {form}: {done.stderr.strip()[:300]}")
                    failed = True
                    continue
                got = np.load(folder / "out.npy")
                difference = float(np.abs(got - want).max() / np.abs(want).max())
                print(f"{name}, {form}: largest difference {difference:.1e} of the largest logit", flush=True)
                failed |= difference > 2e-4
    sys.exit(failed)


if __name__ == "__main__":
    main()
