#!/usr/bin/env python3
"""Encoding speed of kvasir and of the publishers' tokenizers on the same megabytes, one thread each, in one run.

    python tools/oracles/tokenizer_speed.py build/release/src/tokenizer/tokenizer_bench MODELS_FOLDER tests/data [NAME ...]

One vocabulary of each kind is written into MODELS_FOLDER/tokenizers/kinds, made of real ones (`make models` fetches them). Prints
the table of docs/tokenizers.md. NAMEs restrict it to models whose name contains one of them.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import publisher_tokenizer as publisher
import tokenizer_strings as strings
from tokenizer_patterns import PATTERNS

MEGABYTE = 1 << 20
TEXTS = ("prose", "mixed", "one_word", "spaces")


def texts(data):
    prose = b"".join(f.read_bytes() for f in sorted((data / "text").glob("*.txt"))).decode()
    prose *= -(-MEGABYTE // len(prose.encode()))
    fragments = json.loads((data / "tokenizer" / "fragments.json").read_text())
    parts, size, i = [], 0, 0
    while size < MEGABYTE:
        parts.append(strings.text(i, fragments, []))
        size += len(parts[-1].encode())
        i += 1
    return {"prose": prose, "mixed": "".join(parts), "one_word": "a" * MEGABYTE, "spaces": " " * MEGABYTE}


def byte_level(vocabulary, merges, split=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = bytes_ if split is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make_kinds(source, folder):
    """A tokenizer.json of each kind; t5.gguf is the Unigram one as a GGUF vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    qwen = json.loads((source / "qwen2.json").read_text())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in qwen["merges"]]
    byte_level(qwen["vocab"], merges).save(str(folder / "gpt2.json"))
    byte_level(qwen["vocab"], merges, PATTERNS["llama3"][0], True).save(str(folder / "llama3.json"))
    byte_level(qwen["vocab"], merges, PATTERNS["gpt4o"][0]).save(str(folder / "gpt4o.json"))

    reader = gguf.GGUFReader(source / "mistral_v3.gguf")
    pieces = publisher.field(reader, "tokenizer.ggml.tokens")
    scores = publisher.field(reader, "tokenizer.ggml.scores")
    kinds = publisher.field(reader, "tokenizer.ggml.token_type")
    ids = {piece: i for i, piece in enumerate(pieces)}
    ranked = []  # as transformers' converter makes merges of scores
    for piece, score in zip(pieces, scores):
        for cut in range(1, len(piece)):
            if piece[:cut] in ids and piece[cut:] in ids:
                ranked.append((-score, ids[piece[:cut]], ids[piece[cut:]], piece[:cut], piece[cut:]))
    ranked.sort()
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[entry[3:] for entry in ranked], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.save(str(folder / "llama_spm.json"))

    normal = [piece for piece, kind in zip(pieces, kinds) if kind == publisher.NORMAL]
    unigram = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(piece, -2.0 * math.log(i + 2)) for i, piece in enumerate(normal)]
    tokenizer = Tokenizer(models.Unigram(unigram, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.save(str(folder / "unigram.json"))

    words = {"[UNK]": 0}
    for piece in normal:
        word = piece[1:] if piece.startswith("\u2581") else "##" + piece
        if word and word.lower() == word:
            words.setdefault(word, len(words))
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "wordpiece.json"))

    writer = gguf.GGUFWriter(folder / "t5.gguf", "t5")
    writer.add_tokenizer_model("t5")
    writer.add_token_list([piece for piece, _ in unigram])
    writer.add_token_scores([score for _, score in unigram])
    writer.add_token_types([publisher.CONTROL, publisher.CONTROL, publisher.UNKNOWN] + [publisher.NORMAL] * len(normal))
    writer.add_add_space_prefix(True)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def sentencepiece_unigram(path):
    reader = gguf.GGUFReader(path)
    model = proto.ModelProto()
    for token, score, kind in zip(*(publisher.field(reader, f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type"))):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = proto.TrainerSpec.UNIGRAM
    model.trainer_spec.unk_id, model.trainer_spec.eos_id, model.trainer_spec.pad_id, model.trainer_spec.bos_id = 2, 1, 0, -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()).encode


def theirs(path):
    """The publisher's encoder, and the package that it is in."""
    if path.suffix == ".json":
        tokenizer = Tokenizer.from_file(str(path))
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, "tokenizers"
    if path.stem == "t5":
        return sentencepiece_unigram(path), "sentencepiece"
    return publisher.encoder(path)[0], "tokenizers" if path.stem.startswith("SmolLM2") else "sentencepiece"


def main(bench, folder, data, wanted):
    source = folder / "tokenizers"
    if not (source / "kinds").exists():
        make_kinds(source, source / "kinds")
    names = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-Q4_K_M.gguf"]
    names += sorted(str(f.relative_to(folder)) for f in [*source.glob("*.*"), *(source / "kinds").glob("*.*")])
    names = [name for name in names if not wanted or any(w in name for w in wanted)]
    all_texts = texts(data)
    print("| vocabulary | against | " + " | ".join(TEXTS) + " |")
    print("| --- | --- | " + " | ".join("---:" for _ in TEXTS) + " |")
    for name in names:
        stem = name.rsplit(".", 1)[0]
        ours = json.loads(subprocess.run(
            [bench, "--benchmark_format=json", "--benchmark_min_time=0.05", f"--benchmark_filter=^encode/{stem}/"],
            check=True, capture_output=True).stdout)
        rates = {b["name"].rsplit("/", 1)[1]: b["bytes_per_second"] / 1e6 for b in ours["benchmarks"]}
        encode, package = theirs(folder / name)
        cells = []
        for kind in TEXTS:
            text = all_texts[kind]
            # A quadratic one is measured on less: what it would take is shown as at least this.
            begin = time.perf_counter()
            encode(text[: len(text) // 16])
            sixteenth = time.perf_counter() - begin
            if sixteenth > 2:
                rate, sign = len(text.encode()) / 16e6 / sixteenth, "<"
            else:
                begin = time.perf_counter()
                encode(text)
                rate, sign = len(text.encode()) / 1e6 / (time.perf_counter() - begin), ""
            cells.append(f"{rates[kind]:.1f} / {sign}{rate:.1f}")
        print(f"| {name} | {package} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:])
