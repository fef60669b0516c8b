#!/usr/bin/env python3
"""Goldens for the tokenizers of the starter models: hashes of what their publishers' tokenizers make of 10,000 strings.

    python tools/oracles/tokenizer_gguf_goldens.py MODELS_FOLDER tests/data/tokenizer

SmolLM2's tokenizer is rebuilt with the `tokenizers` package and Gemma 3's with `sentencepiece`, from what the GGUF files
hold (publisher_tokenizer.py).
"""
import json
import pathlib
import sys

import gguf

import publisher_tokenizer as publisher
import tokenizer_strings as strings

COUNT, BLOCK = 10000, 100


def replace_structural(data):
    """GGUF's rule for invalid bytes (formats.md 4.9). None where a surrogate passes, which Python's strings cannot hold."""
    out, i = [], 0
    while i < len(data):
        lead = data[i]
        length = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF8 else 0
        tail = data[i + 1 : i + length] if length else b""
        if length == 0 or len(tail) != length - 1 or any(b & 0xC0 != 0x80 for b in tail):
            out.append("\ufffd")
            i += 1
            continue
        value = lead if length == 1 else lead & (0x7F >> length)
        for b in tail:
            value = value << 6 | b & 0x3F
        if value > 0x10FFFF:
            out.append("\ufffd")
            i += 1
            continue
        if 0xD800 <= value < 0xE000:
            return None
        out.append(chr(value))
        i += length
    return "".join(out)


def golden(encode, texts):
    hashes, state = [], strings.FNV_OFFSET
    for i, text in enumerate(texts):
        if text is not None:
            state = strings.hash_ids(state, encode(text))
        if (i + 1) % BLOCK == 0:
            hashes.append("%016x" % state)
            state = strings.FNV_OFFSET
    return hashes


def main(models, out):
    fragments = json.loads((out / "fragments.json").read_text())
    for name, file, kinds in (("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", (3, 4)), ("gemma3", "gemma-3-270m-Q4_K_M.gguf", (4,))):
        reader = gguf.GGUFReader(models / file)
        encode, _ = publisher.encoder(models / file)
        tokens, types = publisher.field(reader, "tokenizer.ggml.tokens"), publisher.field(reader, "tokenizer.ggml.token_type")
        specials = [token for token, kind in zip(tokens, types) if kind in kinds]
        result = {
            "model": file,
            "block": BLOCK,
            # Sentencepiece never takes a control token from text: Gemma's are compared with parse_special off.
            "parse_special": 3 in kinds,
            "specials": specials,
            "text": golden(encode, [strings.text(i, fragments, specials) for i in range(COUNT)]),
        }
        if name == "smollm2":
            result["bytes"] = golden(encode, [replace_structural(strings.raw_bytes(i)) for i in range(COUNT)])
        (out / f"{name}_gguf.golden.json").write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
