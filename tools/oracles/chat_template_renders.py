#!/usr/bin/env python3
"""Whole conversations through whole templates, as transformers renders them.

    python tools/oracles/chat_template_renders.py                       writes tests/data/chat/{conversations.json,renders.jsonl}
    python tools/oracles/chat_template_renders.py --real MODELS         writes tests/data/chat/real_renders.jsonl, from
                                                                        MODELS/templates/*.jinja (real_templates.py) and MODELS/*.gguf
    python tools/oracles/chat_template_renders.py --live DIR --binary build/release/src/chat/jinja_differential
                                                                        compares every *.jinja under DIR, writes nothing

A golden line holds the length and the 64-bit FNV-1a hash of the text (or "error"), so that the file stays small. One of a real template
holds the hash of its source, then for each conversation a "length hash" a setting, "refused" where the template itself raised, "error" where
it failed otherwise.
"""
import argparse
import collections
import glob
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import jinja_reference
from chat_conversations import CONVERSATIONS, OPTIONS, TOKENS
from real_templates import fnv
from transformers.utils import chat_template_utils

DATA = os.path.join(HERE, "../../tests/data/chat")


def variables(messages, options):
    messages = chat_template_utils._normalize_chat_messages(messages)
    messages = chat_template_utils._alias_reasoning_fields(messages)
    return {**TOKENS, "tools": None, "documents": None, **options, "messages": messages}


def golden():
    rows = []
    for path in sorted(glob.glob(DATA + "/templates/*.jinja")):
        source = open(path).read()
        for name, messages in CONVERSATIONS.items():
            for index, options in enumerate(OPTIONS):
                result = jinja_reference.render(source, variables(messages, options))
                row = [os.path.basename(path)[:-6], name, index]
                row += [len(result[1].encode()), fnv(result[1].encode())] if result[0] == "r" else ["error", result[3]]
                rows.append(json.dumps(row, ensure_ascii=False))
    with open(DATA + "/renders.jsonl", "w") as f:
        f.write("\n".join(rows) + "\n")
    with open(DATA + "/conversations.json", "w") as f:
        json.dump({"conversations": CONVERSATIONS, "options": OPTIONS, "tokens": TOKENS}, f, ensure_ascii=False)
    print(len(rows), "renders,", sum('"error"' in r for r in rows), "refusals")


def real_sources(models):
    """name -> source: the templates fetched for the tests, and those in the starter models."""
    import gguf
    sources = {path.name: path.read_bytes() for path in sorted((models / "templates").glob("*.jinja"))}
    for path in sorted(models.glob("*.gguf")):
        field = gguf.GGUFReader(path).get_field("tokenizer.chat_template")
        if field:
            sources[path.name] = bytes(field.parts[field.data[0]])
    return sources


def real(models):
    def entry(source, messages, options):
        result = jinja_reference.render(source, variables(messages, options))
        if result[0] == "r":
            text = result[1].encode()
            return "%d %s" % (len(text), fnv(text))
        return "refused" if result[1] == "TemplateError" else "error"

    count = collections.Counter()
    with open(DATA + "/real_renders.jsonl", "w") as f:
        for template, source in real_sources(models).items():
            row = {"template": template, "source": fnv(source)}
            for name, messages in CONVERSATIONS.items():
                row[name] = [entry(source.decode(), messages, options) for options in OPTIONS]
                count.update(e if e in ("refused", "error") else "rendered" for e in row[name])
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
    print(dict(count))


def live(folder, binary):
    process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    count = bad = refused = 0
    python_seconds = ours_seconds = 0.0
    for path in sorted(glob.glob(folder + "/*.jinja")):
        source = open(path, newline="").read()
        for name, messages in CONVERSATIONS.items():
            for index, options in enumerate(OPTIONS):
                v = variables(messages, options)
                start = time.time()
                expected = jinja_reference.render(source, v)
                python_seconds += time.time() - start
                start = time.time()
                process.stdin.write(json.dumps({"t": source, "v": v}) + "\n")
                process.stdin.flush()
                got = json.loads(process.stdout.readline())
                ours_seconds += time.time() - start
                count += 1
                refused += expected[0] == "e"
                same = got.get("r") == expected[1] if expected[0] == "r" else "e" in got
                if not same:
                    bad += 1
                    if bad <= 20:
                        print(os.path.basename(path), name, index, "\n  want", repr(expected)[:700], "\n  got ", repr(got)[:700])
    print(count, "renders,", refused, "refused by jinja2,", bad, "differ; seconds (parse and render):", round(python_seconds, 2), round(ours_seconds, 2))


parser = argparse.ArgumentParser()
parser.add_argument("--live")
parser.add_argument("--real", type=pathlib.Path)
parser.add_argument("--binary")
arguments = parser.parse_args()
if arguments.live:
    live(arguments.live, arguments.binary)
elif arguments.real:
    real(arguments.real)
else:
    golden()
