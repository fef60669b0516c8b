#!/usr/bin/env python3
"""The benchmark scripts with programs that only pretend: what they print, and that they fail when nothing was measured.

    tests/bench/run.py SOURCE_ROOT
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(sys.argv[1])
failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}")


def run(script, *arguments):
    command = [ROOT / "bench" / script, *arguments]
    if script.endswith(".py"):
        command.insert(0, sys.executable)
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


FAKE_KVASIR = f"""#!{sys.executable}
import json, sys
flags = sys.argv[1:]
def of(flag, otherwise):
    return flags[flags.index(flag) + 1] if flag in flags else otherwise
if "broken" in flags[1]:
    sys.exit("kvasir: the model is broken, says kvasir")
batch = int(of("--batch", 1))
print(json.dumps({{"prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 10.0 * batch, "decode_bandwidth_fraction": 0.5,
                  "prefill_arithmetic_fraction": 0.25, "read_bandwidth_gb_s": 20.0, "peak_arithmetic_gop_s": 1000.0,
                  "decode_weight_bytes": 1e9, "decode_kv_bytes": 1e6, "decode_operations": 1e9 * batch, "depth": of("--depth", 0),
                  "machine": {{"busy_before": ["others take 1.50 of 2 processors"] if "busy" in flags[1] else [], "busy_during": []}}}}))
"""


def batch_decode(work):
    kvasir = program(work / "kvasir", FAKE_KVASIR)
    figures, svg = work / "figures.json", work / "out.svg"

    def measure(model, *flags):
        return run("batch_decode.py", "measure", model, "--kvasir", kvasir, "--out", figures, *flags)

    def draw():
        status, _, error = run("batch_decode.py", "draw", svg, figures)
        check(status == 0, f"draw: {error[-300:]}")
        return xml.etree.ElementTree.parse(svg) if status == 0 else None

    status, out, error = measure("m.gguf", "--batches", "1,2,4")
    check(status == 0 and "times one row" in out and "| 4 | 40.0 | 4.00 |" in out, f"a table: {out} {error}")
    draw()
    status, out, _ = measure("m.gguf", "--batches", "4,8")
    check(status == 0 and "times 4 rows" in out and "one row" not in out, f"against the fewest rows: {out}")
    for batches in ("1", "8"):
        status, _, error = measure("m.gguf", "--batches", batches)
        check(status == 0, f"one size of {batches} rows: {error[-300:]}")
        draw()
    measure("m.gguf", "--batches", "1,2", "--title", "<A & B>")
    tree = draw()
    check(tree is not None and "<A & B>" in "".join(tree.getroot().itertext()), "a title with < and & stays itself")
    status, _, error = measure("busy.gguf", "--batches", "2")
    check(status == 0 and "2 rows: busy before: others take 1.50 of 2 processors" in error, f"a busy machine is told: {error[-300:]}")
    status, _, error = measure("broken.gguf")
    check(status != 0 and "says kvasir" in error and "Traceback" not in error, f"kvasir's message is shown: {error[-300:]}")


def make_models(work):
    peers, models = work / "peers", work / "models"
    models.mkdir()
    status, _, error = run("peers/make_models.sh", peers, models)
    check(status == 1 and "build.py" in error, f"without a quantizer: {status} {error}")
    quantize = program(peers / "llama/bin/llama-quantize", "#!/bin/sh\nexit 1\n")
    status, _, error = run("peers/make_models.sh", peers, models)
    check(status == 1 and "nothing to convert" in error, f"without a model: {status} {error}")
    (models / "llama-1b-F16.gguf").write_text("x")
    status, _, error = run("peers/make_models.sh", peers, models)
    check(status == 1 and "5 of 5 conversions failed" in error, f"every conversion fails: {status} {error}")
    check("left out" in error and error.count("SmolLM2") == 1, f"what is missing is said once: {error}")
    program(quantize, '#!/bin/sh\n[ "$4" != Q8_0 ] && cp "$2" "$3"\n')
    status, _, error = run("peers/make_models.sh", peers, models)
    check(status == 1 and "1 of 5" in error, f"one conversion fails: {status} {error}")
    program(quantize, '#!/bin/sh\ncp "$2" "$3"\n')
    status, _, error = run("peers/make_models.sh", peers, models)
    made = sorted(p.name for p in models.iterdir())
    check(status == 0 and len(made) == 6 and not any(name.endswith((".log", ".part")) for name in made), f"all succeed: {status} {error} {made}")


def compare(work):
    kvasir, peers, models = program(work / "kvasir", FAKE_KVASIR), work / "peers", work / "models"
    models.mkdir()

    def table(*flags, binary=kvasir):
        return run("peers/compare.py", "--peers", peers, "--models", models, "--kvasir", binary, "--rounds", 1, *flags)

    status, _, error = table(binary=work / "absent")
    check(status == 1 and "no engine" in error, f"no engine: {status} {error}")
    status, _, error = table()
    check(status == 1 and "nothing was measured" in error, f"no model: {status} {error}")
    (models / "llama-1b-Q4_0.gguf").write_text("x")
    status, _, error = table("--model", "no such*")
    check(status == 1 and "nothing was measured" in error, f"no match: {status} {error}")
    status, out, error = table("--model", "1.07B Q4_0", "--json", work / "out.json")
    check(status == 0 and "| 1.07B Q4_0 | 100 | 10 |" in out, f"a table: {status} {out} {error}")
    check(json.loads((work / "out.json").read_text())["speed"]["1.07B Q4_0"]["kvasir"]["decode"] == 10, "and its figures")
    # llama-bench must not be asked for 32,768 tokens.
    program(peers / "llama/bin/llama-bench", f"""#!{sys.executable}
import json, sys
assert "32768" not in sys.argv
print(json.dumps([{{"n_gen": 32, "avg_ts": 3.0}}, {{"n_gen": 0, "avg_ts": 7.0}}]))
""")
    status, out, error = table("--model", "1.07B Q4_0", "--what", "depth")
    check(status == 0 and "1.07B Q4_0, depth 8192, f16 | 10 | 3 |" in out and "1.07B Q4_0, depth 32768, f16 | 10 | - |" in out and not error,
          f"depths: {status} {out} {error}")
    # The Python engines are columns of the same table.
    program(work / "venv/bin/python", f"""#!{sys.executable}
import json, sys
engine = sys.argv[sys.argv.index("--engine") + 1]
assert int(sys.argv[sys.argv.index("--prompt") + 1]) <= 128
print("a warning")
print(json.dumps({{engine: {{"prefill": 1.5, "decode": 0.5}}}}))
""")
    status, out, error = table("--model", "1.07B Q4_0", "--python", work / "venv")
    check(status == 0 and "| 1.07B Q4_0 | 100 | 7 | 1.5 | 1.5 | 10 | 3 | 0.5 | 0.5 |" in out, f"--python: {status} {out} {error}")
    status, _, error = table("--python", work / "absent")
    check(status == 1 and "virtual environment" in error, f"no such environment: {error}")


with tempfile.TemporaryDirectory(prefix="kvasir-bench-scripts-") as folder:
    for section in (batch_decode, make_models, compare):
        work = pathlib.Path(folder) / section.__name__
        os.makedirs(work)
        section(work)
print("failed" if failures else "all checks passed")
sys.exit(1 if failures else 0)
