"""What the tests of the command line share. Standard library only; every program here is called as PROGRAM KVASIR SOURCE_FOLDER ..."""
import array
import json
import os
import struct
import subprocess
import sys

KVASIR, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ENV = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
ENV["KVASIR_MODELS"] = os.path.join(SOURCE, "models")
SMOL = os.path.join(SOURCE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
GEMMA = os.path.join(SOURCE, "models", "gemma-3-270m-Q4_K_M.gguf")
failures = []


def run(*args, stdin=b"", timeout=300, env=None, **more):
    words = [a if isinstance(a, bytes) else str(a) for a in args]
    return subprocess.run([KVASIR, *words], capture_output=True, input=stdin, env=dict(ENV, **(env or {})), timeout=timeout, **more)


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def expect_exit(code, *args, contains="", **options):
    """The exit status, and an error whose first line begins with "kvasir: " and holds a text."""
    result = run(*args, **options)
    message = result.stderr.decode(errors="replace")
    first = message.splitlines()[0] if message else ""
    ok = result.returncode == code and contains in first and (code == 0 or first.startswith("kvasir: "))
    check(ok, f"exit {code}: {' '.join(map(str, args))[-100:]}" + ("" if ok else f" -> {result.returncode}: {message[:300]}"))
    return result


class Folder:
    """Paths in a folder: at(name), and files in it: at(name, content)."""

    def __init__(self, path):
        self.path = path

    def __call__(self, name, content=None):
        path = os.path.join(self.path, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def lines_of(data):
    return [json.loads(line) for line in data.splitlines()]


def read_npy(path):
    """Shape and values of a float32 file."""
    data = read(path)
    assert data[:6] == b"\x93NUMPY"
    (length,) = struct.unpack("<H", data[8:10])
    shape = eval(data[10:10 + length].decode().split("'shape': ")[1].split("), ")[0] + ")")
    values = array.array("f")
    values.frombytes(data[10 + length:])
    return shape, values


def finish():
    if failures:
        print(f"{len(failures)} failed")
        sys.exit(1)
