#!/usr/bin/env python3
"""Tiny random checkpoints through llama.cpp's own converter, against transformers in float32.

    converted_gguf.py --kvasir build/release/kvasir --llama-cpp SOURCES --tokenizer tokenizer.model

transformers writes a random model with its rope factors, convert_hf_to_gguf.py makes an F32 GGUF of it (`rope_freqs` for llama3,
`rope_factors_long/short` for longrope, rows of q and k permuted), and `kvasir eval logits` must give transformers' logits for it and for
the folder, to 2e-4 of the largest. --tokenizer is a sentencepiece model: the converter wants one. Without it, that part is left out.

Then `kvasir synth` writes a tiny folder of every other family that the converter knows, and the file that it makes of the folder must give the
folder's logits (which the families' goldens hold against the publishers'); the converter's vocabularies are replaced by none.
Nothing is written; exits 1 on a difference.
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
# Of each family: its class, and what config.json must say that synth leaves to kvasir's defaults (the converter takes those of transformers' class)
# or that older converters' checkpoints say.
FAMILIES = {
    "apertus": ("ApertusForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}), "cohere": ("CohereForCausalLM", {}),
    "cohere2": ("Cohere2ForCausalLM", {"rotary_pct": 1.0}), "ernie4_5": ("Ernie4_5ForCausalLM", {"head_dim": 16}),
    "exaone4": ("Exaone4ForCausalLM", {}),
    "gemma": ("GemmaForCausalLM", {}), "glm4": ("Glm4ForCausalLM", {}), "granite": ("GraniteForCausalLM", {}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", {}), "internlm2": ("InternLM2ForCausalLM", {"bias": False}),
    "minicpm": ("MiniCPMForCausalLM", {}), "nemotron": ("NemotronForCausalLM", {}), "olmo": ("OlmoForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}), "olmo3": ("Olmo3ForCausalLM", {}), "phi": ("PhiForCausalLM", {}), "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}), "qwen3_moe": ("Qwen3MoeForCausalLM", {}), "seed_oss": ("SeedOssForCausalLM", {"head_dim": 16}),
    "smollm3": ("SmolLM3ForCausalLM", {}), "stablelm": ("StableLmForCausalLM", {}), "starcoder2": ("Starcoder2ForCausalLM", {}),
}
SETS = {"internlm2": ["bias=false"], "phi": ["num_key_value_heads=4", "intermediate_size=256"]}  # all that the converter knows
# The converter with vocabularies of no tokens, whose size only some of its classes state themselves.
WITHOUT_VOCABULARY = """
import importlib, pkgutil, runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import conversion
def none(self):
    self.gguf_writer.add_tokenizer_model("no_vocab")
    if not any(self.gguf_writer.arch + ".vocab_size" in data for data in self.gguf_writer.kv_data):
        self.gguf_writer.add_key_value(self.gguf_writer.arch + ".vocab_size", self.hparams["vocab_size"], __import__("gguf").GGUFValueType.UINT32)
for module in pkgutil.iter_modules(conversion.__path__):
    try:
        members = vars(importlib.import_module("conversion." + module.name)).values()
    except ImportError:
        continue
    for member in list(members):
        if isinstance(member, type) and "set_vocab" in vars(member):
            member.set_vocab = none
converter = sys.argv[1] + "/convert_hf_to_gguf.py"
sys.argv = [converter, *sys.argv[2:]]
runpy.run_path(converter, run_name="__main__")
"""


def logits(kvasir, model, ids, folder):
    (folder / "ids.json").write_text(json.dumps(ids))
    done = subprocess.run([kvasir, "eval", "logits", model, "--tokens", folder / "ids.json", "--out", folder / "out.npy", "--activations", "f32"],
                          capture_output=True, text=True)
    return np.load(folder / "out.npy") if done.returncode == 0 else done.stderr.strip()[:300]


def synthesized(kvasir, llama_cpp):
    """Whether a family's converted file differs from its folder."""
    failed = False
    ids = [(i * i * 7 + i * 131 + 5) % 100 for i in range(40)]
    for family, (architecture, fields) in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            sets = [argument for text in SETS.get(family, []) for argument in ("--set", text)]
            subprocess.run([kvasir, "synth", folder / "hf", "--family", family, "--format", "f32", "--set", "vocab_size=128", *sets], check=True,
                           capture_output=True)
            config = json.loads((folder / "hf/config.json").read_text())
            (folder / "hf/config.json").write_text(json.dumps({**config, **fields, "architectures": [architecture]}))
            done = subprocess.run([sys.executable, "-c", WITHOUT_VOCABULARY, llama_cpp, folder / "hf", "--outtype", "f32", "--outfile", folder / "m.gguf"],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{family}: not converted: {done.stderr.strip().splitlines()[-1][:200]}")
                continue
            want, got = (logits(kvasir, folder / name, ids, folder) for name in ("hf", "m.gguf"))
            failed |= differs(family, want, got, 1e-5)
    return failed


def differs(label, want, got, limit):
    """Says how far two logits are apart, or what was said in the place of one."""
    for said in (want, got):
        if isinstance(said, str):
            print(f"{label}: {said}")
            return True
    difference = float(np.abs(got - want).max() / np.abs(want).max())
    print(f"{label}: largest difference {difference:.1e} of the largest logit", flush=True)
    return difference > limit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvasir", "llama-cpp", "tokenizer"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=name != "tokenizer")
    arguments = parser.parse_args()
    ids = [(i * i * 7 + i * 131 + 5) % 30000 + 300 for i in range(64)]
    failed = synthesized(arguments.kvasir, arguments.llama_cpp)
    for name, (kind, change) in CASES.items() if arguments.tokenizer else ():
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
            for form, path in (("gguf", folder / "m.gguf"), ("folder", folder / "hf")):
                got = logits(arguments.kvasir, path, ids, folder)
                failed |= differs(f"{name}, {form}", want, got, 2e-4)
    sys.exit(failed)


if __name__ == "__main__":
    main()
