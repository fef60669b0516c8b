#!/usr/bin/env python3
"""Encoding speed of kvasir and of the publishers' tokenizers on the same megabytes, one thread each, in one run.

    python tools/oracles/tokenizer_speed.py build/release/src/tokenizer/tokenizer_bench MODELS_FOLDER tests/data
"""
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer

import publisher_tokenizer as publisher
import tokenizer_strings as strings

MEGABYTE = 1 << 20


def texts(data):
    prose = b"".join(f.read_bytes() for f in sorted((data / "text").glob("*.txt"))).decode()
    prose *= -(-MEGABYTE // len(prose.encode()))
    fragments = json.loads((data / "tokenizer" / "fragments.json").read_text())
    parts, size, i = [], 0, 0
    while size < MEGABYTE:
        parts.append(strings.text(i, fragments, []))
        size += len(parts[-1].encode())
        i += 1
    return {"prose": prose, "mixed": "".join(parts), "one_word": "a" * MEGABYTE}


def main(bench, models, data):
    ours = json.loads(subprocess.run([bench, "--benchmark_format=json", "--benchmark_filter=^(encode|load|stream)/"], check=True, capture_output=True).stdout)
    rates = {b["name"]: b for b in ours["benchmarks"]}
    for name, entry in rates.items():
        if name.startswith("load/"):
            print("%-50s %8.1f ms" % (name, entry["real_time"]))
        if name.startswith("stream/"):
            print("%-50s %8.1f MB/s" % (name, entry["bytes_per_second"] / 1e6))
    real = [f"tokenizers/{name}" for name in ("deepseek_v3", "qwen2", "qwen35", "tekken")]
    for model in ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-Q4_K_M"] + real:
        if model in real:
            if not (models / f"{model}.json").exists():
                continue
            tokenizer = Tokenizer.from_file(str(models / f"{model}.json"))
            encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        else:
            encode, _ = publisher.encoder(models / f"{model}.gguf")
        for kind, text in texts(data).items():
            best = 1e9
            for _ in range(2 if kind != "one_word" else 1):
                begin = time.perf_counter()
                encode(text)
                best = min(best, time.perf_counter() - begin)
            theirs = len(text.encode()) / 1e6 / best
            mine = rates[f"encode/{model}/{kind}"]["bytes_per_second"] / 1e6
            print("%-50s kvasir %8.1f MB/s   publisher's %6.1f MB/s   %5.1fx" % (f"{model}/{kind}", mine, theirs, mine / theirs))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
