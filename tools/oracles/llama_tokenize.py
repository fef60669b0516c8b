#!/usr/bin/env python3
"""Compares `kvasir tokenize` with llama.cpp's `llama-tokenize` on vocabulary-only GGUF files: one for each name of
`tokenizer.ggml.pre` that kvasir reads, all with the vocabulary of MODEL.gguf, and one for each of the kinds llama, bert and t5 (or those that
are named), with the vocabularies that tokenizer_speed.py makes.

    python tools/oracles/llama_tokenize.py KVASIR LLAMA_TOKENIZE MODEL.gguf VOCABULARIES tests/data [NAME ...] [--count N]

The strings of the exactness tests (N, 10,000 unless given) go through each program BATCH at once, a control token between them. Prints,
for every name, how many strings differ, and how many of those no known difference (docs/tokenizers.md) accounts for, with the first of them.
"""
import argparse
import json
import math
import pathlib
import re
import subprocess
import tempfile
import unicodedata

import gguf

import tokenizer_strings as strings
from real_vocabularies import LETTERS

BATCH = 2500  # strings a run: llama-tokenize's time grows with the square of the number of special tokens
NAMES = re.compile(r'"([a-z0-9_.-]+)"')


def names():
    source = (pathlib.Path(__file__).parents[2] / "src/tokenizer/gguf_pre_kinds.cc").read_text()
    return [name for block in re.findall(r"any\(\{(.*?)\}\)", source, re.S) for name in NAMES.findall(block)]


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
    return value("tokens")


def write_bert(path, folder):
    """The words of wordpiece.json, stored as llama.cpp's converter does: a mark before what begins a word, none before what goes on."""
    words = json.loads((folder / "kinds" / "wordpiece.json").read_text())["model"]["vocab"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [word[2:] if word.startswith("##") else "\u2581" + word for word in sorted(words, key=words.get) if word != "[UNK]"]
    tokens = list(dict.fromkeys(tokens))
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 2, 3, 3, 3] + [1] * (len(tokens) - 5))
    for name, token in (("cls", 2), ("bos", 2), ("seperator", 3), ("unknown", 1), ("padding", 0), ("mask", 4)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def write_sentencepiece(path, source):
    """Only what makes the vocabulary."""
    reader = gguf.GGUFReader(source)
    value = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(value("model"))
    writer.add_token_list(value("tokens"))
    writer.add_token_scores(value("scores"))
    writer.add_token_types(value("token_type"))
    for key in ("bos_token_id", "eos_token_id", "unknown_token_id"):
        if f"tokenizer.ggml.{key}" in reader.fields:
            writer.add_uint32(f"tokenizer.ggml.{key}", int(value(key)))
    for key in ("add_space_prefix", "remove_extra_whitespaces"):
        if f"tokenizer.ggml.{key}" in reader.fields:
            writer.add_bool(f"tokenizer.ggml.{key}", bool(value(key)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return value("tokens")


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


def known(pre, text, vanishing, tokens, scores, ours, theirs):
    """A difference that docs/tokenizers.md and the format's notes list."""
    if pre == "bert":
        if any(unicodedata.decomposition(c).startswith("1") or "\uac00" <= c <= "\ud7a3" for c in text):
            return "Hangul"
        if any(c in "\u000b\u0085" for c in text):
            return "U+000B and U+0085"
        if any(len(word) > 100 for word in text.split()):
            return "words of more than 100 characters"
        if any(unicodedata.category(c)[0] == "M" for c in text):
            return "marks"
    if pre == "t5" and text.strip(" ") == "":
        return "spaces alone"
    if pre == "t5" and "".join(tokens[i] for i in ours) == "".join(tokens[i] for i in theirs):
        if math.isclose(sum(scores[i] for i in ours), sum(scores[i] for i in theirs), rel_tol=1e-6):
            return "ties"
    if pre == "llama" and text == " ":
        return "space after a special token"
    if pre in ("llama", "bert", "t5"):
        return "newer Unicode" if any(unicodedata.category(c) == "Cn" for c in text) else None
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
    parser.add_argument("vocabularies", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=10000)
    args = parser.parse_intermixed_args()
    reader = gguf.GGUFReader(args.model)
    fragments = json.loads((args.data / "tokenizer" / "fragments.json").read_text())
    texts = [strings.text(i, fragments, []).replace("\0", " ") for i in range(args.count)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "text.txt"
        model = str(pathlib.Path(folder) / "vocabulary.gguf")
        for pre in args.names or names() + ["llama", "bert", "t5"]:
            if pre == "bert":
                tokens, mark = write_bert(model, args.vocabularies), "[SEP]"
            elif pre == "llama":
                tokens, mark = write_sentencepiece(model, args.vocabularies / "mistral_v3.gguf"), "</s>"
            elif pre == "t5":
                tokens, mark = write_sentencepiece(model, args.vocabularies / "kinds" / "t5.gguf"), "</s>"
            else:
                tokens, mark = write(model, reader, pre), "<|im_start|>"
            vanishing = letterless(tokens)
            scores = gguf.GGUFReader(model).fields["tokenizer.ggml.scores"].contents() if pre in ("llama", "t5") else None
            # llama.cpp puts a space before every text that follows a special token, kvasir (as sentencepiece) before those that begin with none.
            theirs_of = (lambda text: text[1:] if text.startswith(" ") else text) if pre == "llama" else (lambda text: text)
            a, b = [], []
            for begin in range(0, len(texts), BATCH):
                batch = texts[begin : begin + BATCH]
                file.write_text("".join(mark + text for text in batch), newline="")
                ours = run([args.kvasir, "tokenize", model, "--file", str(file), "--no-special", "--json"])["ids"]
                file.write_text("".join(mark + theirs_of(text) for text in batch), newline="")
                theirs = run([args.llama_tokenize, "-m", model, "-f", str(file), "--ids", "--no-bos", "--no-escape", "--log-disable"])
                a += split(ours, tokens.index(mark))
                b += split(theirs, tokens.index(mark))
            differ = [i for i in range(len(texts)) if a[i] != b[i]]
            reasons = {}
            for i in differ:
                reasons.setdefault(known(pre, texts[i], vanishing, tokens, scores, a[i], b[i]), []).append(i)
            unknown = reasons.pop(None, [])
            failed += bool(unknown)
            print(f"{pre:20} {len(texts)} strings, {len(differ)} differ: " +
                  ", ".join([f"{len(list_)} {reason}" for reason, list_ in sorted(reasons.items())] + [f"{len(unknown)} unexplained"]), flush=True)
            for i in unknown[:2]:
                print(f"    {texts[i][:300]!r}\n    kvasir {str(a[i])[:300]}\n    llama  {str(b[i])[:300]}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
