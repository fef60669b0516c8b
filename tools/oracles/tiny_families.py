#!/usr/bin/env python3
"""Goldens of tiny random checkpoints, one or more a family: float32 logits of the publisher's implementation.

    tiny_families.py --out tests/data/models [--reference dense_reference.py] [--only NAME ...]

The weights are not stored: both sides make them by the rule in src/models/synth.h, from the tensors' names. A case is a
config.json as transformers writes it, a seed, and the logits of 64 positions for every third entry of the vocabulary.
Families without a class in transformers are evaluated by mlx-lm on the CPU in float32, and checked against --reference, a second
implementation of the graphs in numpy float64 (usage: dense_reference.py FOLDER TOKENS.json OUT.npy), which also names their tensors.
Where mlx-lm departs from the publisher (minicpm divides the head's input only when untied) or cannot have the shape, it stands alone.

Writes OUT/families.json (the cases) and OUT/families.safetensors (a tensor [64, columns] a case).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

VOCAB, POSITIONS, STEP = 48, 64, 5
MASK = (1 << 64) - 1


def tokens():
    return [(i * i * 7 + i * 13 + 5) % VOCAB for i in range(POSITIONS)]


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def units(name, seed, count):
    key = 14695981039346656037
    for c in name.encode():
        key = (key ^ c) * 1099511628211 & MASK
    key ^= seed * 0x9E3779B97F4A7C15 & MASK
    with np.errstate(over="ignore"):
        z = (np.uint64(key) + np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        bits = mix(z) >> np.uint64(40)
    return ((bits.astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2.0 ** -23)).astype(np.float32)


PLUS_ONE = {"gemma", "gemma2", "gemma3_text", "nemotron"}


def value(name, shape, seed, model_type):
    """The rule of src/models/synth.h. Stacked experts are drawn by name and row-major index like any matrix."""
    u = units(name, seed, int(np.prod(shape)) if shape else 1).reshape(shape)
    per_head_norm = "norm" in name and len(shape) == 2
    if len(shape) >= 2 and not per_head_norm:
        scale = np.float32(1)
        while scale * scale * shape[-1] >= 4:
            scale /= 2
        return u * scale
    if name.endswith(".bias"):
        return u * np.float32(0.25)
    if name.endswith(".beta"):
        return u * 0 + np.float32(0.5)
    if name.endswith(".eps"):
        return u * 0 + np.float32(-1e-6)
    if name.endswith((".alpha_p", ".alpha_n")):
        return u * np.float32(0.25) + np.float32(0.5)
    return u * np.float32(0.25) + np.float32(0 if model_type in PLUS_ONE else 1)


BASE = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
            max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)


def case(kind, **changes):
    return kind, {**BASE, **changes}


def longrope(pairs):
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.1 * i for i in range(pairs)],
                long_factor=[2.0 + 0.3 * i for i in range(pairs)], original_max_position_embeddings=32)


CASES = {
    "llama": case("llama", head_dim=24),
    "llama-bias-tied": case("llama", head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-one-layer-one-kv": case("llama", num_hidden_layers=1, hidden_size=60, num_attention_heads=5, num_key_value_heads=1, head_dim=14),
    "llama-ratio-three": case("llama", num_attention_heads=6, num_key_value_heads=2, head_dim=10, hidden_size=60, intermediate_size=100),
    "llama-odd-widths": case("llama", hidden_size=70, num_attention_heads=7, num_key_value_heads=7, head_dim=6, intermediate_size=75),
    "llama-llama3": case("llama", head_dim=16, rope_parameters=LLAMA3),
    "llama-yarn": case("llama", head_dim=32, rope_parameters=YARN),
    "llama-linear": case("llama", rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=5000.0)),
    "llama-dynamic": case("llama", rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0)),
    "mistral": case("mistral", head_dim=24, sliding_window=8),
    "mistral-full": case("mistral", sliding_window=None, num_attention_heads=6, num_key_value_heads=3, head_dim=16),
    "qwen2": case("qwen2", num_hidden_layers=2),
    "qwen2-window": case("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1, tie_word_embeddings=True),
    "qwen3": case("qwen3", head_dim=32),
    "qwen3-bias": case("qwen3", head_dim=18, attention_bias=True, num_key_value_heads=1),
    "qwen3_moe": case("qwen3_moe", head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True,
                      mlp_only_layers=[1], decoder_sparse_step=1),
    "qwen3_moe-plain": case("qwen3_moe", head_dim=16, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=False,
                            mlp_only_layers=[], decoder_sparse_step=2),
    "gemma": case("gemma", head_dim=16, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gemma-one-kv": case("gemma", head_dim=20, num_key_value_heads=1, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gemma2": case("gemma2", head_dim=16, hidden_activation="gelu_pytorch_tanh", sliding_window=8, query_pre_attn_scalar=24,
                   attn_logit_softcapping=5.0, final_logit_softcapping=5.0, tie_word_embeddings=True),
    "gemma2-wide": case("gemma2", head_dim=28, hidden_size=72, num_attention_heads=3, num_key_value_heads=1, hidden_activation="gelu_pytorch_tanh",
                        sliding_window=16, query_pre_attn_scalar=28, tie_word_embeddings=True),
    "gemma3": case("gemma3_text", head_dim=16, hidden_activation="gelu_pytorch_tanh", sliding_window=8, sliding_window_pattern=2,
                   query_pre_attn_scalar=24, tie_word_embeddings=True, num_hidden_layers=4),
    "gemma3-linear": case("gemma3_text", head_dim=24, hidden_activation="gelu_pytorch_tanh", sliding_window=12, num_hidden_layers=2,
                          layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=24, num_key_value_heads=1,
                          rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                               sliding_attention=dict(rope_type="default", rope_theta=1e4)),
                          final_logit_softcapping=5.0, tie_word_embeddings=True),
    "phi3": case("phi3", partial_rotary_factor=0.5, rope_parameters={**longrope(4), "partial_rotary_factor": 0.5},
                 original_max_position_embeddings=32, sliding_window=None),
    "phi3-window": case("phi3", sliding_window=9, num_attention_heads=8, num_key_value_heads=2, original_max_position_embeddings=256),
    "olmo2": case("olmo2"),
    "olmo2-bias": case("olmo2", num_attention_heads=8, attention_bias=True, tie_word_embeddings=True),
    "olmo3": case("olmo3", sliding_window=8, num_hidden_layers=4),
    "olmo3-shape": case("olmo3", sliding_window=16, num_hidden_layers=5, num_attention_heads=8, num_key_value_heads=8),
    "glm4": case("glm4", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm4-shape": case("glm4", head_dim=24, partial_rotary_factor=0.25, attention_bias=False, num_key_value_heads=1),
    "glm": case("glm", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm-shape": case("glm", head_dim=32, partial_rotary_factor=0.5, attention_bias=False, num_key_value_heads=4),
    "granite": case("granite", attention_multiplier=0.2, embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=4.0),
    "granite-tied": case("granite", attention_multiplier=0.11, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0,
                         attention_bias=True, mlp_bias=True, tie_word_embeddings=True, num_attention_heads=8),
    "starcoder2": case("starcoder2", use_bias=True, norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", sliding_window=None),
    "starcoder2-window": case("starcoder2", use_bias=False, norm_epsilon=1e-5, hidden_act="gelu", sliding_window=8, num_key_value_heads=1),
    "smollm3": case("smollm3", num_hidden_layers=5),
    "smollm3-window": case("smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=8, attention_bias=True,
                           layer_types=None),
    "cohere": case("cohere", use_qk_norm=True, logit_scale=0.25, layer_norm_eps=1e-5, tie_word_embeddings=True),
    "cohere-plain": case("cohere", use_qk_norm=False, attention_bias=True, logit_scale=0.5, layer_norm_eps=1e-5, num_attention_heads=8,
                         tie_word_embeddings=True),
    "cohere2": case("cohere2", sliding_window=8, num_hidden_layers=5, logit_scale=0.25, layer_norm_eps=1e-5, tie_word_embeddings=True),
    "cohere2-shape": case("cohere2", sliding_window=12, num_hidden_layers=4, logit_scale=0.5, num_attention_heads=8, num_key_value_heads=1,
                          tie_word_embeddings=True, layer_norm_eps=1e-5),
    "stablelm": case("stablelm", partial_rotary_factor=0.25, use_qkv_bias=True, layer_norm_eps=1e-5, hidden_act="silu"),
    "stablelm-parallel": case("stablelm", partial_rotary_factor=0.5, use_parallel_residual=True, qk_layernorm=True, layer_norm_eps=1e-5,
                              hidden_act="silu"),
    "phi": case("phi", partial_rotary_factor=0.5, hidden_act="gelu_new", layer_norm_eps=1e-5, num_key_value_heads=4),
    "phi-norm": case("phi", partial_rotary_factor=0.25, hidden_act="gelu_new", layer_norm_eps=1e-5, qk_layernorm=True),
    "nemotron": case("nemotron", partial_rotary_factor=0.5, hidden_act="relu2", norm_eps=1e-5),
    "nemotron-shape": case("nemotron", partial_rotary_factor=0.25, hidden_act="relu2", norm_eps=1e-5, num_attention_heads=8, head_dim=16),
    "exaone4": case("exaone4", sliding_window=8, sliding_window_pattern="LLLG", num_hidden_layers=5,
                    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "exaone4-full": case("exaone4", sliding_window=None, sliding_window_pattern=4, layer_types=["full_attention"] * 3, num_attention_heads=8),
    "seed_oss": case("seed_oss", head_dim=24, attention_bias=True, attention_out_bias=False),
    "seed_oss-out": case("seed_oss", head_dim=16, attention_bias=False, attention_out_bias=True, num_key_value_heads=1),
    "hunyuan": case("hunyuan_v1_dense", head_dim=16),
    "hunyuan-alpha": case("hunyuan_v1_dense", head_dim=24, attention_bias=False, num_key_value_heads=4,
                          rope_parameters=dict(rope_type="dynamic", alpha=1000.0, factor=1.0, rope_theta=10000.0)),
    "ernie4_5": case("ernie4_5", head_dim=16, use_bias=True),
    "ernie4_5-shape": case("ernie4_5", head_dim=24, use_bias=False, tie_word_embeddings=True, num_key_value_heads=1),
    "apertus": case("apertus", hidden_act="xielu", rope_parameters=LLAMA3),
    "apertus-shape": case("apertus", hidden_act="xielu", num_attention_heads=8, num_key_value_heads=1,
                          rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "nanochat": case("nanochat", hidden_act="relu2", final_logit_softcapping=5.0),
    "nanochat-shape": case("nanochat", hidden_act="relu2", final_logit_softcapping=15.0, num_attention_heads=8, num_key_value_heads=1),
    "helium": case("helium", head_dim=16),
    "helium-shape": case("helium", head_dim=8, num_attention_heads=8, attention_bias=True),
    "ministral3": case("ministral3", head_dim=16, sliding_window=None,
                       rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0,
                                            llama_4_scaling_beta=0.3, mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0)),
    "ministral3-window": case("ministral3", head_dim=20, sliding_window=8,
                              rope_parameters=dict(rope_type="default", rope_theta=10000.0, llama_4_scaling_beta=0.1,
                                                   original_max_position_embeddings=8)),
    "olmo": case("olmo", clip_qkv=0.5),
    "olmo-plain": case("olmo", clip_qkv=None, num_attention_heads=8, tie_word_embeddings=True),
}

# As publishers write them: fields left to the class's defaults, and wrappers around the text model. (family, config, wrapper)
SPARSE = {
    "gemma3-wrapper": ("gemma3_text", dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=7, sliding_window=8, tie_word_embeddings=True,
                                           rope_scaling=dict(rope_type="linear", factor=8.0)), "gemma3"),
    "mistral-wrapper": ("mistral", {**BASE, "head_dim": 24, "sliding_window": None, "rope_theta": 5000.0}, "mistral3"),
    "ministral3-wrapper": ("ministral3", {**BASE, "head_dim": 16, "rope_parameters": dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0, llama_4_scaling_beta=0.3, mscale=1.0,
        mscale_all_dim=1.0)}, "mistral3"),
    "exaone4-default": ("exaone4", {**BASE, "sliding_window": 8, "num_hidden_layers": 5, "rope_theta": 10000.0}, None),
}

# Families without a class in transformers.
OTHERS = {
    "internlm2": case("internlm2", bias=True),
    "internlm2-ratio": case("internlm2", bias=False, num_attention_heads=6, num_key_value_heads=2, hidden_size=60),
    "internlm3": case("internlm3", qkv_bias=True, bias=False, head_dim=16),
    "internlm3-bias": case("internlm3", qkv_bias=False, bias=True, num_attention_heads=8, num_key_value_heads=1),
    "exaone": case("exaone", num_layers=2, layer_norm_epsilon=1e-5),
    "exaone-shape": case("exaone", num_layers=3, layer_norm_epsilon=1e-5, num_attention_heads=8, num_key_value_heads=1),
    "minicpm": case("minicpm", scale_emb=6.0, scale_depth=1.4, dim_model_base=32),
    "minicpm-tied": case("minicpm", scale_emb=3.0, scale_depth=1.0, dim_model_base=16, tie_word_embeddings=True, num_attention_heads=8),
    "mimo": case("mimo", head_dim=16),
    "mimo-shape": case("mimo", num_attention_heads=8, num_key_value_heads=1),
    "telechat3": case("telechat3", head_dim=16),
    "telechat3-yarn": case("telechat3", head_dim=16, num_key_value_heads=4,
                           rope_scaling={"type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    "plamo": case("plamo", n_shared_head=2),
    "plamo-shape": case("plamo", n_shared_head=4, num_attention_heads=8),
    "lille": ("lille-130m", dict(n_embd=96, n_head=6, n_kv_heads=2, n_layer=2, layer_norm_eps=1e-5, vocab_size=VOCAB,
                                 max_position_embeddings=256)),
    "olmo-original": ("olmo", dict(d_model=64, n_heads=4, n_layers=2, mlp_hidden_size=192, embedding_size=VOCAB, vocab_size=VOCAB,
                                   weight_tying=False, max_sequence_length=256)),
    "olmo-original-tied": ("olmo", dict(d_model=64, n_heads=8, n_layers=2, mlp_ratio=4, embedding_size=VOCAB, vocab_size=VOCAB,
                                        weight_tying=True, max_sequence_length=256)),
}
for name, (kind, config) in OTHERS.items():
    if kind == "exaone":
        for key in ("num_hidden_layers", "rms_norm_eps"):
            config.pop(key)


# At the end: the weights of a case come from its number.
LATER = {
    "lille-shape": ("lille-130m", dict(n_embd=80, n_head=4, n_kv_heads=1, n_layer=3, layer_norm_eps=1e-6, vocab_size=VOCAB,
                                       max_position_embeddings=256)),
    "iquestcoder": ("iquestcoder", case("llama", head_dim=16)[1]),
    "iquestcoder-shape": ("iquestcoder", case("llama", hidden_size=60, num_attention_heads=6, num_key_value_heads=2, head_dim=20, attention_bias=True)[1]),
    # Scaled ropes of families whose published checkpoints have plain ones: their classes take every kind.
    "glm4-linear": case("glm4", head_dim=16, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0, partial_rotary_factor=0.5)),
    "glm4-yarn": case("glm4", head_dim=32, rope_parameters={**YARN, "partial_rotary_factor": 0.5}),
    "gemma-linear": case("gemma", head_dim=16, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0)),
    "gemma2-dynamic": case("gemma2", head_dim=16, hidden_activation="gelu_pytorch_tanh", sliding_window=8, query_pre_attn_scalar=24,
                           tie_word_embeddings=True, max_position_embeddings=32,
                           rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0)),
    "stablelm-linear": case("stablelm", use_qkv_bias=True, layer_norm_eps=1e-5, hidden_act="silu",
                            rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0, partial_rotary_factor=0.25)),
    "stablelm-llama3": case("stablelm", use_qkv_bias=True, layer_norm_eps=1e-5, hidden_act="silu",
                            rope_parameters={**LLAMA3, "partial_rotary_factor": 0.5}),
    "starcoder2-yarn": case("starcoder2", use_bias=True, norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", sliding_window=None, rope_parameters=YARN),
}


def publisher_logits(kind, config, seed):
    configuration = transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if v is not None or k == "sliding_window"})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configuration, dtype=torch.float32, attn_implementation="eager").eval()
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    with torch.no_grad():
        state = model.state_dict()
        for name, tensor in state.items():
            if tied and name == "lm_head.weight":
                continue
            if "inv_freq" in name:
                continue
            tensor.copy_(torch.from_numpy(np.array(value(name, tuple(tensor.shape), seed, kind))).reshape(tensor.shape).to(tensor.dtype))
        logits = model(torch.tensor([tokens()]), use_cache=False).logits[0].float().numpy()
    return json.loads(model.config.to_json_string(use_diff=False)), logits


def reference_shapes(reference, config):
    """Names and shapes of a checkpoint of a family that only the second implementation knows."""
    a = reference.Args(config)
    names, mt = a.names, config["model_type"]
    hidden = config.get("hidden_size") or config.get("n_embd") or config.get("d_model")
    inner = config.get("intermediate_size")
    if mt == "lille-130m":
        inner = 256 * round((8 * hidden // 3) / 256)
    if "d_model" in config:
        inner = (config.get("mlp_hidden_size") or config["mlp_ratio"] * hidden) // 2
    n, g, d = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.head_dim
    out = {names["embed"]: (VOCAB, hidden)}
    plain = a.norm in ("rms", "layernorm", "rms_plus_one", "layernorm_plus_one")
    for i in range(a.layers):
        p = names["layer"].format(i=i)
        if a.fused_qkv:
            out[p + names["qkv"]] = (n + 2 * g, hidden)
            biased = [names["qkv"]]
        else:
            out.update({p + names["q"]: (n, hidden), p + names["k"]: (g, hidden), p + names["v"]: (g, hidden)})
            biased = [names["q"], names["k"], names["v"]]
        if a.qkv_bias:
            for j in biased:
                out[p + j + ".bias"] = (out[p + j][0],)
        out[p + names["o"]] = (hidden, n)
        if a.o_bias:
            out[p + names["o"] + ".bias"] = (hidden,)
        if a.fused_mlp:
            mlp = {names["gate_up"]: (2 * inner, hidden), names["down"]: (hidden, inner)}
        else:
            mlp = {names["gate"]: (inner, hidden), names["up"]: (inner, hidden), names["down"]: (hidden, inner)}
        for j, shape in mlp.items():
            out[p + j] = shape
            if a.mlp_bias:
                out[p + j + ".bias"] = (shape[0],)
        if plain:
            out[p + names["n1"]] = (hidden,)
            if a.block != "parallel":
                out[p + names["n2"]] = (hidden,)
    if plain:
        out[names["final"]] = (hidden,)
    if not (a.tie or config.get("tie_word_embeddings")):
        out[names["head"]] = (VOCAB, hidden)
    return {k if k.endswith(".bias") else k + ".weight": v for k, v in out.items()}


def reference_logits(path, kind, config, seed):
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    reference = __import__(pathlib.Path(path).stem)
    config = {"model_type": kind, **{k: v for k, v in config.items() if v is not None}}
    renamed = dict(config)
    for old, new in reference.FIELDS.get(kind, {}).items():
        if old in renamed:
            renamed[new] = renamed[old]
    shapes = reference_shapes(reference, renamed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save_file({name: np.ascontiguousarray(value(name, shape, seed, kind)) for name, shape in shapes.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokens.json").write_text(json.dumps(tokens()))
        subprocess.run([sys.executable, path, folder, folder / "tokens.json", folder / "out.npy"], check=True, stdout=subprocess.DEVNULL)
        second = np.load(folder / "out.npy")
        if kind == "minicpm" and config.get("tie_word_embeddings"):  # mlx-lm divides the head's input only when untied
            return config, second, "reference"
        # Fields that mlx-lm wants stated; the values are the defaults.
        stated = {"block_size": 256, "rope_theta": 10000.0} if kind == "lille-130m" else {"rope_theta": 10000.0} if kind in ("telechat3", "exaone") else {}
        if "mlp_ratio" in config and "d_model" in config:
            stated["mlp_hidden_size"] = config["mlp_ratio"] * config["d_model"]
        (folder / "config.json").write_text(json.dumps({**stated, **config}))
        try:
            first, oracle = mlx_logits(folder), "mlx-lm"
        except (TypeError, ValueError) as problem:  # shapes that mlx-lm cannot have
            print(f"{kind}: not in mlx-lm: {problem}")
            return config, second, "reference"
        difference = float(np.abs(first - second).max() / np.abs(second).max())
        assert difference <= 2e-4, f"{oracle} and the second implementation differ by {difference:.1e} of the largest logit"
        print(f"{kind}: {oracle} and the second implementation differ by {difference:.1e} of the largest logit")
        return config, first, oracle


def mlx_logits(folder):
    """One token at a time: mlx-lm's olmo needs it, and the others do not mind."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    sys.modules.setdefault("hf_olmo", types.ModuleType("hf_olmo"))  # mlx-lm's olmo asks for it and uses nothing of it
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder, lazy=False)
    model.set_dtype(mx.float32)
    cache = make_prompt_cache(model)
    return np.stack([np.array(model(mx.array([[t]]), cache=cache)[0, 0].astype(mx.float32)) for t in tokens()])


DROP = {"architectures", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "return_dict", "output_hidden_states",
        "output_attentions", "chunk_size_feed_forward", "is_encoder_decoder", "problem_type", "use_cache", "initializer_range", "_name_or_path",
        "attention_dropout", "pretraining_tp", "embd_pdrop", "resid_pdrop", "embedding_dropout", "residual_dropout", "hidden_dropout"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--reference")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    cases, arrays, failed = [], {}, []
    for seed, (name, (kind, config, *wrapper)) in enumerate({**CASES, **OTHERS, **SPARSE, **LATER}.items(), start=1):
        if args.only and name not in args.only:
            continue
        try:
            if name in SPARSE:
                _, logits = publisher_logits(kind, config, seed)
                config, oracle = {"model_type": kind, **config}, "transformers"
                if wrapper[0]:
                    config = {"model_type": wrapper[0], "text_config": config}
            elif kind == "iquestcoder":  # the publisher's class is the llama one under another name
                config, logits = publisher_logits("llama", config, seed)
                config, oracle = {**config, "model_type": kind}, "transformers"
            elif name in CASES or kind in {k for k, _ in CASES.values()}:
                config, logits = publisher_logits(kind, config, seed)
                oracle = "transformers"
            elif args.reference:
                config, logits, oracle = reference_logits(args.reference, kind, config, seed)
            else:
                continue
        except Exception as error:  # every failure is listed at the end
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        kept = {k: v for k, v in config.items() if k not in DROP}
        cases.append({"name": name, "oracle": oracle, "seed": seed, "max_abs": float(np.abs(logits).max()), "config": kept})
        arrays[name] = np.ascontiguousarray(logits[:, ::STEP].astype(np.float32))
        print(f"{name}: max |logit| {np.abs(logits).max():.3f}")
    args.out.mkdir(parents=True, exist_ok=True)
    text = ",\n".join("  " + json.dumps(c, separators=(",", ":")) for c in cases)
    (args.out / "families.json").write_text(f'{{"transformers": "{transformers.__version__}", "tokens": {json.dumps(tokens())}, "step": {STEP},\n "cases": [\n{text}\n]}}\n')
    save_file(arrays, args.out / "families.safetensors")
    for line in failed:
        print("FAILED", line)


if __name__ == "__main__":
    main()
