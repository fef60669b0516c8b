#!/usr/bin/env python3
"""Reference logits of a GGUF model: transformers' own GGUF loading (weights de-quantized), float32 throughout.

    reference_logits.py MODEL.gguf --out DIR --name NAME [--golden-dir tests/data/real] [--text-dir tests/data/text]

Writes DIR/NAME.tokens.json (one JSON list: BOS where the model wants one, then the texts of tests/data/text joined by blank
lines, in the publisher's token ids) and DIR/NAME.npy (float32 [T, V], row t = logits after token t). With --golden-dir also
NAME.tokens.json and NAME.golden.json there, small enough for git; their format is documented in tests/data/real/README.md.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import publisher_tokenizer

TEXTS = ("prose", "code", "languages", "essay", "mixed")
# Ranks of the ids whose log-probabilities a golden keeps: the likely ones densely, the tail sparsely.
RANKS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
GOLDEN_TOKENS = 2048
GOLDEN_STEP = 8
ROWS = 64  # rows of logits computed at once


def token_ids(model_path, text_dir):
    encode, bos = publisher_tokenizer.encoder(model_path)
    text = "\n\n".join((text_dir / f"{name}.txt").read_text().rstrip("\n") for name in TEXTS)
    return ([bos] if bos is not None else []) + encode(text)


def load(path):
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                 attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def write_logits(model, ids, out):
    """Streams logits to a .npy file: the head is applied to ROWS positions at a time."""
    hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    head = model.lm_head
    assert getattr(model.config, "final_logit_softcapping", None) is None
    logits = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=(len(ids), head.weight.shape[0]))
    for start in range(0, len(ids), ROWS):
        logits[start:start + ROWS] = head(hidden[start:start + ROWS]).numpy()
    logits.flush()


def golden(model_name, ids, logits):
    positions = list(range(0, min(GOLDEN_TOKENS, len(ids)), GOLDEN_STEP))
    kept, values, largest = [], [], 0.0
    for position in positions:
        row = logits[position].astype(np.float64)
        largest = max(largest, float(np.abs(row).max()))
        row -= row.max()
        row -= np.log(np.exp(row).sum())
        order = np.argsort(-row, kind="stable")[list(RANKS)]
        kept.append(order.tolist())
        values.append([round(float(row[i]), 5) for i in order])
    return {"model": model_name, "tokens": min(GOLDEN_TOKENS, len(ids)), "ranks": list(RANKS),
            "max_abs_logit": round(largest, 4), "positions": positions, "ids": kept,
            "log_probs": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--text-dir", type=pathlib.Path, default=root / "tests/data/text")
    parser.add_argument("--golden-dir", type=pathlib.Path)
    parser.add_argument("--tokens-only", action="store_true", help="write the token ids and stop")
    parser.add_argument("--keep-logits", action="store_true", help="make the golden from the DIR/NAME.npy that exists")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    ids = token_ids(arguments.model, arguments.text_dir)
    tokens_file = f"{arguments.name}.tokens.json"
    (arguments.out / tokens_file).write_text(json.dumps(ids) + "\n")
    print(f"{arguments.name}: {len(ids)} tokens")
    if arguments.tokens_only:
        return
    npy = arguments.out / f"{arguments.name}.npy"
    if not arguments.keep_logits:
        write_logits(load(arguments.model), ids, npy)
    if arguments.golden_dir:
        arguments.golden_dir.mkdir(parents=True, exist_ok=True)
        (arguments.golden_dir / tokens_file).write_text(json.dumps(ids) + "\n")
        record = golden(arguments.model.name, ids, np.load(npy, mmap_mode="r"))
        rows = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in record.items())
        (arguments.golden_dir / f"{arguments.name}.golden.json").write_text("{" + rows + "}\n")


if __name__ == "__main__":
    main()
