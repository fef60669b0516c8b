#!/usr/bin/env python3
"""Compares `kvasir tokenize` with llama.cpp's `llama-tokenize` on vocabulary-only GGUF files, one for each name of
`tokenizer.ggml.pre` that kvasir reads (or those that are given), all with the vocabulary of one model.

    python tools/oracles/llama_tokenize.py KVASIR LLAMA_TOKENIZE MODEL.gguf tests/data [--count N] [PRE ...]

The strings of the exactness tests (N for the first name of each pattern, a tenth of them for the others) go through each program at once, a control token between them. Prints, for every name, how many
strings differ, and how many of those no known difference (docs/tokenizers.md) accounts for, with the first of them.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import unicodedata

import gguf

import tokenizer_strings as strings
from real_vocabularies import LETTERS

MARK = "<|im_start|>"
BATCH = 500  # strings a run: llama-tokenize's time grows with the square of the number of special tokens
NAMES = re.compile(r'"([a-z0-9_.-]+)"')


def names():
    """Every name, and whether it is the first of those that share a pattern."""
    source = (pathlib.Path(__file__).parents[2] / "src/tokenizer/gguf_pre_kinds.cc").read_text()
    blocks = [NAMES.findall(block) for block in re.findall(r"any\(\{(.*?)\}\)", source, re.S)]
    return [(name, name == block[0]) for block in blocks for name in block]


def write(path, reader, pre):
    writer = gguf.GGUFWriter(path, "llama")
    value = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(value("tokens"))
    writer.add_token_types(value("token_type"))
    writer.add_token_merges(value("merges"))
    writer.add_bos_token_id(value("bos_token_id"))
    writer.add_eos_token_id(value("eos_token_id"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def run(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def split(ids, mark):
    parts, part = [], []
    for i in ids:
        if i == mark:
            parts.append(part)
            part = []
        else:
            part.append(i)
    return parts[1:] + [part]  # before the first mark: what the kind adds


def letterless(tokens):
    """ASCII control characters whose letter is no token of the vocabulary."""
    letters = {LETTERS[b]: b for b in range(256)}
    return {chr(b) for letter, b in letters.items() if letter not in set(tokens) and b < 128}


def known(pre, text, vanishing):
    """A difference that docs/tokenizers.md and the format's notes list."""
    if any(c in vanishing for c in text):
        return "letters that are no tokens"
    if any(unicodedata.category(c) == "Cn" for c in text):  # Python's tables are no newer than llama.cpp's 15.1
        return "newer Unicode"
    if pre in ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "tekken") and any(
            ord(c) > 127 and unicodedata.category(c)[0] in "LM" for c in text):
        return "letter cases"
    if pre in ("deepseek-coder", "deepseek-llm") and any(ord(c) > 127 and c.isspace() for c in text):
        return "white space"
    if any(c in text for c in "\u017f\u212a"):
        return "case folding"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvasir")
    parser.add_argument("llama_tokenize")
    parser.add_argument("model")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("pre", nargs="*")
    parser.add_argument("--count", type=int, default=10000)
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.model)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    vanishing = letterless(tokens)
    mark = tokens.index(MARK)
    fragments = json.loads((args.data / "tokenizer" / "fragments.json").read_text())
    all_texts = [strings.text(i, fragments, []).replace("\0", " ") for i in range(args.count)]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "text.txt"
        failed = 0
        for pre, first in [(pre, True) for pre in args.pre] or names():
            texts = all_texts if first else all_texts[: args.count // 10]
            model = str(pathlib.Path(folder) / "vocabulary.gguf")
            write(model, reader, pre)
            a, b = [], []
            for begin in range(0, len(texts), BATCH):
                file.write_text("".join(MARK + text for text in texts[begin : begin + BATCH]), newline="")
                ours = run([args.kvasir, "tokenize", model, "--file", str(file), "--no-special", "--json"])["ids"]
                theirs = run([args.llama_tokenize, "-m", model, "-f", str(file), "--ids", "--no-bos", "--no-escape", "--log-disable"])
                a += split(ours, mark)
                b += split(theirs, mark)
            differ = [i for i in range(len(texts)) if a[i] != b[i]]
            reasons = {}
            for i in differ:
                reasons.setdefault(known(pre, texts[i], vanishing), []).append(i)
            unknown = reasons.pop(None, [])
            failed += bool(unknown)
            print(f"{pre:20} {len(texts)} strings, {len(differ)} differ: " +
                  ", ".join([f"{len(list_)} {reason}" for reason, list_ in sorted(reasons.items())] + [f"{len(unknown)} unexplained"]), flush=True)
            for i in unknown[:2]:
                print(f"    {texts[i][:300]!r}\n    kvasir {str(a[i])[:300]}\n    llama  {str(b[i])[:300]}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
