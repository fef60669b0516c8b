#!/usr/bin/env python3
"""What a run leaves behind when it cannot end: Ctrl-C at any moment of any verb, folders that are missing or cannot be written, and
less memory than it needs. Standard library only.

    failures.py KVASIR SOURCE_FOLDER [SECTION ...]
"""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import ENV, KVASIR, SMOL, Folder, check, expect_exit, finish, read, run


def everything(folder):
    """Relative paths below a folder with sizes."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(base, name)
            found[os.path.relpath(path, folder)] = os.path.getsize(path) if os.path.isfile(path) else -1
    return found


def take_signal():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whatever the tests were started with


def interrupted(folder, args, delay=None, until=None, stdin=None):
    """Runs a verb, sends it SIGINT after a delay or as soon as until() holds; its exit status and what is new in the folder."""
    before = everything(folder)
    process = subprocess.Popen([KVASIR, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                               env=ENV, preexec_fn=take_signal)
    if stdin:
        process.stdin.write(stdin)
        process.stdin.flush()
    deadline = time.time() + 60
    if delay is not None:
        time.sleep(delay)
    else:
        while not until(process) and process.poll() is None and time.time() < deadline:
            time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    output, message = process.communicate(timeout=60)
    new = {name: size for name, size in everything(folder).items() if before.get(name) != size}
    return process.returncode, new, output, message


def signals(at):
    ids = at("ids.json", json.dumps([300 + i * 37 % 20000 for i in range(1500)]))
    store = at("store")
    saved = run("eval", "logits", "smollm2", "--tokens", at("short.json", json.dumps(list(range(300, 900)))), "--out", at("short.npy"), "--save-at", 590, store)
    entry = [f for _, _, files in os.walk(store) for f in files if f.endswith(".kvk")]
    check(saved.returncode == 0 and len(entry) == 1, f"a store to export from {saved.stderr[:200]}")
    run("kv", "export", entry[0][:12], at("whole.kvk"), "--prompt-cache-dir", store)
    run("kv", "import", at("whole.kvk"), "--prompt-cache-dir", at("imported"))
    (whole_entry,) = [size for name, size in everything(at("imported")).items() if name.endswith(".kvk")]
    work = at("work")
    os.makedirs(work)
    inside = Folder(work)
    # Verbs that write files: whenever the signal comes, there is the whole output or none of it.
    writers = {
        "pack": (["pack", "smollm2", "--out", inside("m.kpack")], ["m.kpack"]),
        "synth FILE": (["synth", inside("s.gguf"), "--size", "small", "--set", "vocab_size=200000", "--set", "hidden_size=512", "--format", "gguf-q4_0"], ["s.gguf"]),
        "synth FOLDER": (["synth", inside("s"), "--size", "small", "--set", "vocab_size=100000", "--set", "hidden_size=512", "--format", "bf16"], ["s", "s/config.json", "s/model.safetensors"]),
        "eval logits": (["eval", "logits", "smollm2", "--tokens", ids, "--out", inside("x.npy")], ["x.npy"]),
        "kv export": (["kv", "export", entry[0][:12], inside("e.kvk"), "--prompt-cache-dir", store], ["e.kvk"]),
        "kv import": (["kv", "import", at("whole.kvk"), "--prompt-cache-dir", inside("new")], None),
    }
    for name, (args, outputs) in writers.items():
        def writing(process):
            return any(".partial-" in f or f.endswith(".tmp") for _, _, files in os.walk(work) for f in files)
        seen = set()
        for attempt in [dict(until=writing)] * 3 + [dict(delay=d) for d in (0.02, 0.06, 0.2)]:
            status, new, _, message = interrupted(work, args, **attempt)
            if status == -signal.SIGINT and "delay" in attempt:
                status = 130  # not yet in main(): what a shell makes of it
            half = [f for f in new if "partial" in f or f.endswith(".tmp")]
            if status == 130:
                left = [f for f in new if new[f] >= 0 and not f.endswith(".lock")] if name == "kv import" else list(new)
                # The signal may come when the output is there already: an import's is the entry, whole.
                whole = set(left) == set(outputs) if outputs else len(left) == 1 and new[left[0]] == whole_entry
                check(not half and (not left or whole), f"{name}: interrupted, it leaves nothing ({message[-80:]}) {new}")
            elif status == 0:
                check(not half and (outputs is None or set(new) == set(outputs)), f"{name}: done before the signal, it is whole {new}")
            else:
                check(False, f"{name}: exit {status}: {message[-300:]}")
            seen.add(status)
            shutil.rmtree(work)
            os.makedirs(work)
        check(130 in seen, f"{name}: Ctrl-C ends it with 130")
    # What kill -9 leaves goes with the next run that writes the same file.
    for name, again in (("pack", writers["pack"][0]), ("synth FILE", writers["synth FILE"][0]), ("eval logits", ["eval", "logits", "smollm2", "--tokens", at("few.json", "[300, 301]"), "--out", inside("x.npy")])):
        args, outputs = writers[name]
        process = subprocess.Popen([KVASIR, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
        while not any(".partial-" in f for f in os.listdir(work)) and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.wait()
        left = os.listdir(work)
        living = inside(f"{outputs[0]}.partial-{os.getpid()}")
        with open(living, "w") as file:
            file.write("x")
        result = run(*again)
        check(len(left) == 1 and left[0].startswith(f"{outputs[0]}.partial-{process.pid}-") and result.returncode == 0 and set(os.listdir(work)) == {outputs[0], os.path.basename(living)},
              f"{name}: kill -9 leaves {left}, the next run {sorted(os.listdir(work))}")
        shutil.rmtree(work)
        os.makedirs(work)
    # Verbs that only compute. They are interrupted when they have begun to work, and before.
    prose = at("prose.txt", "The sea is wide and the night is long. " * 400)
    computing = {
        "eval ppl": ["eval", "ppl", "smollm2", "--file", prose, "--window", 512],
        "eval kl": ["eval", "kl", "smollm2", "--file", prose, "--against-activations", "f32", "--window", 512],
        "eval kv-sensitivity": ["eval", "kv-sensitivity", "smollm2", "--tokens", at("short.json"), "--out", inside("kv.json")],
        "bench": ["bench", "smollm2", "-p", 512, "-n", 200, "--runs", 9, "--force"],
        "generate": ["generate", "smollm2", "--prompt", "Tell a long story.", "--ignore-eos", "--max-tokens", 4000],
        "generate --json": ["generate", "smollm2", "--prompt", "Tell a long story.", "--ignore-eos", "--max-tokens", 4000, "--json"],
        "generate of a long prompt": ["generate", "smollm2", "--file", prose, "--chunk", 64],
    }
    for name, args in computing.items():
        for delay in (0.02, 0.7):
            status, new, _, message = interrupted(work, args, delay=delay)
            check(status == 130 and message.startswith(b"kvasir: ") or delay < 0.1 and status == -signal.SIGINT, f"{name}: it says that it was interrupted")
            check(status in (130, -signal.SIGINT if delay < 0.1 else 130) and not new, f"{name}: Ctrl-C after {delay} s ends it with 130 ({status}: {message[-120:]}) {new}")
    status, _, output, _ = interrupted(work, ["chat", "smollm2", "--context", 2048], stdin=b"Write a very long story about a whale.\n", delay=1.5)
    check(status == 130, f"chat without a terminal: 130 ({status})")
    # A verb that was started with the signal ignored (nohup, a shell's background job) goes on.
    process = subprocess.Popen([KVASIR, "pack", "smollm2", "--out", inside("ignored.kpack")], stdout=subprocess.DEVNULL, env=ENV,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=60) == 0 and os.path.exists(inside("ignored.kpack")), "a signal that is ignored stops nothing")
    process = subprocess.Popen([KVASIR, "generate", "smollm2", "--prompt", "Tell a long story.", "--ignore-eos", "--max-tokens", "60"], stdout=subprocess.PIPE, env=ENV,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    check(process.returncode == 0, "... nor where a verb polls it between steps")


def folders(at):
    """Missing folders and folders that cannot be written: exit 1 for every verb, and the name of the file."""
    tokens = at("ids.json", "[300, 301, 302]")
    jsonl = at("one.jsonl", '{"prompt": "hi"}')
    store = at("store")
    run("eval", "logits", "smollm2", "--tokens", tokens, "--out", at("x.npy"), "--save-at", 2, store)
    entry = [f for _, _, files in os.walk(store) for f in files if f.endswith(".kvk")][0]
    exported = at("e.kvk")
    run("kv", "export", entry[:12], exported, "--prompt-cache-dir", store)

    def writers(folder):
        return [["pack", SMOL, "--out", os.path.join(folder, "m.kpack")],
                ["synth", os.path.join(folder, "s.gguf"), "--format", "gguf-q8_0"],
                ["eval", "logits", SMOL, "--tokens", tokens, "--out", os.path.join(folder, "x.npy")],
                ["generate", SMOL, "--jsonl", jsonl, "--output", os.path.join(folder, "x.jsonl"), "--max-tokens", 2],
                ["kv", "export", entry[:12], os.path.join(folder, "e.kvk"), "--prompt-cache-dir", store]]
    missing = at("missing")
    for args in writers(missing):
        result = expect_exit(1, *args, contains=missing)
        check(b"No such file or directory" in result.stderr and b"internal" not in result.stderr, f"... and why: {result.stderr[:150]}")
    for args in writers(at("ids.json")):  # a file where a folder is needed
        result = expect_exit(1, *args, contains=at("ids.json"))
        check(b"Not a directory" in result.stderr, f"... and why: {result.stderr[:150]}")
    result = expect_exit(1, "synth", os.path.join(at("ids.json"), "s"), contains=at("ids.json"))
    result = expect_exit(1, "kv", "import", exported, "--prompt-cache-dir", os.path.join(at("ids.json"), "s"), contains=at("ids.json"))
    expect_exit(1, "chat", SMOL, "--json", "--context", 256, "--max-tokens", 2, "--prompt-cache-dir", os.path.join(at("ids.json"), "s"), stdin=b"Hi\n/save a\n", contains=at("ids.json"))
    for args in (["fit", ""], ["generate", "", "--prompt", "x"], ["inspect", ""], ["pack", ""], ["bench", ""], ["tokenize", "", "--text", "x"], ["get", ""]):
        expect_exit(2, *args, contains="MODEL is missing")

    # A folder without the right to write. Root may write anywhere: there it is somebody else who tries.
    os.chmod(at.path, 0o755)
    mine = shutil.copy(KVASIR, at("kvasir"))
    model = at("m.gguf")
    run("synth", model, "--format", "gguf-q8_0")
    locked = at("locked")
    os.makedirs(os.path.join(locked, "models--org--name", "refs"))
    shutil.copy(exported, os.path.join(locked, "e.kvk"))
    for base, _, files in os.walk(at.path):
        os.chmod(base, 0o755)
        for name in files:
            os.chmod(os.path.join(base, name), 0o755 if name == "kvasir" else 0o644)
    os.chmod(locked, 0o555)
    os.chmod(os.path.join(locked, "models--org--name"), 0o555)

    def somebody():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    def refused(status, says, *args, env=None, stdin=b""):
        result = subprocess.run([mine, *map(str, args)], capture_output=True, input=stdin, env=dict(ENV, HOME=locked, **(env or {})), preexec_fn=somebody, cwd="/", timeout=120)
        first = result.stderr.decode(errors="replace").splitlines()[:1]
        check(result.returncode == status and first and first[0].startswith("kvasir: ") and says in result.stderr.decode(), f"read-only: exit {status}: {' '.join(map(str, args))[-80:]} -> {result.returncode} {result.stderr[:250]}")
        return result
    denied = "Permission denied"
    for args in (["pack", model, "--out", os.path.join(locked, "m.kpack")], ["synth", os.path.join(locked, "s.gguf"), "--format", "gguf-q8_0"], ["synth", os.path.join(locked, "s")],
                 ["eval", "logits", model, "--tokens", at("few.json", "[1, 2]"), "--out", os.path.join(locked, "x.npy")],
                 ["kv", "import", exported, "--prompt-cache-dir", os.path.join(locked, "store")], ["kv", "export", "e", os.path.join(locked, "f.kvk"), "--prompt-cache-dir", at("store")]):
        if args[0] == "kv" and args[1] == "export":
            args[2] = entry[:12]
        result = refused(1, denied, *args)
        check(locked.encode() in result.stderr, "... by name")
    refused(1, denied, "get", "smollm2", env={"KVASIR_MODELS": os.path.join(locked, "models")})
    check(os.listdir(locked) == os.listdir(locked) and sorted(os.listdir(locked)) == ["e.kvk", "models--org--name"], "and nothing is there")
    # Reading needs no right to write.
    result = subprocess.run([mine, "eval", "logits", model, "--tokens", at("few.json"), "--out", "/dev/null"], capture_output=True, env=dict(ENV, HOME=locked), preexec_fn=somebody, cwd="/")
    check(result.returncode == 0, f"a model in a read-only folder runs {result.stderr[:200]}")
    # A file that may not be read.
    os.chmod(model, 0)
    refused(1, denied, "fit", model)
    os.chmod(locked, 0o755)
    os.chmod(os.path.join(locked, "models--org--name"), 0o755)


def memory(at):
    """Less address space than a run needs: whatever it is that does not fit, it is said in one line, and nobody aborts."""
    model = at("m.gguf")
    run("synth", model, "--format", "gguf-q8_0")
    tokens = at("t.json", "[1, 2, 3, 4, 5]")

    def attempt(megabytes, *args):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        return subprocess.run([KVASIR, *map(str, args)], capture_output=True, env=ENV, preexec_fn=limit, timeout=120)
    for what, args in (("a tiny model", ["eval", "logits", model, "--tokens", tokens, "--out", at("x.npy"), "--threads", 2]), ("a real one", ["generate", SMOL, "--prompt", "Hi", "--max-tokens", 2, "--context", 256])):
        statuses, failed = set(), []
        for megabytes in (*range(24, 120, 6), *range(120, 700, 40), 4096):
            result = attempt(megabytes, *args)
            first = result.stderr.decode(errors="replace").splitlines()[:1]
            # Below some size the loader itself cannot map the program's libraries, and says so in its own words with 127.
            if result.returncode == 127:
                continue
            statuses.add(result.returncode)
            if result.returncode not in (0, 4) or (result.returncode == 4 and not first[0].startswith("kvasir: ")):
                failed.append((megabytes, result.returncode, result.stderr[:200]))
        check(not failed, f"{what} in little memory ends with 4 and a message: {failed[:3]}")
        check(statuses >= {0, 4}, f"... both ends were seen: {statuses}")
    check(not [f for f in os.listdir(at.path) if "partial" in f], "nothing half-written is left")


sections = {"signals": signals, "folders": folders, "memory": memory}
for name in sys.argv[3:] or sections:
    with tempfile.TemporaryDirectory() as scratch:
        sections[name](Folder(scratch))
finish()
