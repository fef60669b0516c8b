#!/usr/bin/env python3
"""Goldens for sentencepiece vocabularies as GGUF files hold them (models "llama" and "t5"): small models trained here, and
hashes of what `sentencepiece` itself makes of 10,000 strings.

    python tools/oracles/tokenizer_sentencepiece_goldens.py tests/data/tokenizer
"""
import base64
import io
import json
import pathlib
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

import tokenizer_strings as strings

COUNT, BLOCK = 10000, 500
USER_DEFINED = ["<x>", "▁▁", "▁▁▁", "▁▁▁▁", "\n", "\n\n", "[tag]", "[tag]s"]
SPECIALS = [token.replace("▁", " ") for token in USER_DEFINED] + ["[tag", "<x", "      "]
# Rules of the normalizer: sources and replacements in hex, as its trainer reads them.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "ﬁ": "fi", "½": "1/2", "e\u0301": "é", "…": "...", "\u200b": "",
         "Ａ": "A", "ａ": "a", "a\u0300\u0323": "ạ", "①": "1", "\u0085": " "}


def corpus(fragments):
    lines = fragments["lines"] * 3 + [" ".join(fragments["words"][i::9]) for i in range(9)]
    return [line for text in lines for line in text.split("\n") if line.strip() and max(map(ord, line)) < 0x3000]


def train(texts, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, hard_vocab_limit=False, num_threads=1, minloglevel=2, character_coverage=0.98, **options)
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def describe(model, texts, unused=()):
    for i in unused:
        if len(model.pieces[i].piece) > 1:
            model.pieces[i].type = 5
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    hashes, state = [], strings.FNV_OFFSET
    for i, text in enumerate(texts):
        state = strings.hash_ids(state, processor.encode(text))
        if (i + 1) % BLOCK == 0:
            hashes.append("%016x" % state)
            state = strings.FNV_OFFSET
    normalizer = model.normalizer_spec
    return {
        "tokens": [p.piece for p in model.pieces], "scores": [p.score for p in model.pieces], "types": [p.type for p in model.pieces],
        "add_space_prefix": normalizer.add_dummy_prefix, "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "charsmap": base64.b64encode(normalizer.precompiled_charsmap).decode(), "hashes": hashes,
    }


def main(out):
    fragments = json.loads((out / "fragments.json").read_text())
    lines = corpus(fragments)
    texts = [strings.text(i, fragments, SPECIALS) for i in range(COUNT)]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for source, target in sorted(RULES.items()):
            rules.write(" ".join("%X" % ord(c) for c in source) + "\t" + " ".join("%X" % ord(c) for c in target) + "\n")
        rules.flush()
        plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        cases = {
            "bpe": describe(train(lines, model_type="bpe", vocab_size=900, byte_fallback=True, user_defined_symbols=USER_DEFINED, **plain), texts),
            "bpe_no_prefix": describe(train(lines, model_type="bpe", vocab_size=700, byte_fallback=True, add_dummy_prefix=False, **plain), texts),
            "bpe_unknown": describe(train(lines, model_type="bpe", vocab_size=500, **plain), texts),
            "bpe_unused": describe(train(lines, model_type="bpe", vocab_size=600, **plain), texts, unused=range(20, 400, 3)),
            "unigram": describe(train(lines, model_type="unigram", vocab_size=500, normalization_rule_tsv=rules.name), texts),
            "unigram_spaces": describe(train(lines, model_type="unigram", vocab_size=500, user_defined_symbols=["<x>", "[tag]", "[tag]s"], **plain), texts),
        }
    (out / "sentencepiece.json").write_text(json.dumps({"block": BLOCK, "specials": SPECIALS, "cases": cases}, ensure_ascii=False, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
