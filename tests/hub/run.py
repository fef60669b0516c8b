#!/usr/bin/env python3
"""`kvasir get`, `ls`, `rm` and model names against a hub on this machine that misbehaves on request. Standard library only.

    run.py KVASIR [FILTER]
"""
import fcntl
import hashlib
import inspect
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import server as hubserver
from server import corrupt, cut, ignore_range, longer, replace, slow, stall, status, wrong_range

KVASIR = os.path.abspath(sys.argv[1])
MB = 1 << 20
failures = []
random.seed(7)


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


class Place:
    """A home folder with a cache, and a hub."""

    def __init__(self, folder, **options):
        self.folder = tempfile.mkdtemp(dir=folder)
        self.cache = os.path.join(self.folder, "hub")
        self.hub = hubserver.Hub(**options)
        self.env = {"PATH": os.environ["PATH"], "HOME": self.folder, "HF_HUB_CACHE": self.cache, "HF_ENDPOINT": self.hub.url,
                    "KVASIR_MODELS": os.path.join(self.folder, "models"), "HF_HUB_DOWNLOAD_TIMEOUT": "2", "TMPDIR": self.folder}
        for name in ("LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def run(self, *args, env=None, stdin=None, preexec=None, timeout=120):
        return subprocess.run([KVASIR, *map(str, args)], capture_output=True, env=dict(self.env, **(env or {})), input=stdin,
                              preexec_fn=preexec, timeout=timeout)

    def get(self, *args, **options):
        result = self.run("get", *args, "--json", **options)
        result.json = json.loads(result.stdout) if result.stdout.startswith(b"{") else {}
        result.text = result.stderr.decode()
        return result

    def start(self, *args, env=None):
        return subprocess.Popen([KVASIR, "get", *args], env=dict(self.env, **(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def repo(self, name):
        return os.path.join(self.cache, "models--" + name.replace("/", "--"))

    def snapshot(self, name, commit):
        return os.path.join(self.repo(name), "snapshots", commit)

    def blobs(self, name):
        folder = os.path.join(self.repo(name), "blobs")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def incomplete(self, name):
        return [b for b in self.blobs(name) if b.endswith(".incomplete")]

    def whole(self, name, commit, path, data):
        """The file is there, a link into blobs under its digest, with the right content."""
        link = os.path.join(self.snapshot(name, commit), path)
        if not os.path.islink(link):
            return False
        target = os.readlink(link)
        wanted = "../" * (2 + path.count("/")) + "blobs/" + self.hub.digest(data)
        with open(link, "rb") as file:
            return target == wanted and file.read() == data

    def close(self):
        self.hub.close()
        shutil.rmtree(self.folder, ignore_errors=True)


SYNTH = {}


def synth(kind, folder, **settings):
    """A small checkpoint: bytes of a GGUF file, or {path: bytes} of a folder."""
    key = (kind, tuple(sorted(settings.items())))
    if key in SYNTH:
        return SYNTH[key]
    out = os.path.join(folder, "synth-%d" % len(SYNTH)) + (".gguf" if kind.startswith("gguf") else "")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, **settings}
    arguments = [x for k, v in sizes.items() for x in ("--set", f"{k}={v}")]
    subprocess.run([KVASIR, "synth", out, "--family", "qwen3", "--format", kind, *arguments], check=True, capture_output=True)
    if os.path.isdir(out):
        SYNTH[key] = {}
        for name in os.listdir(out):
            with open(os.path.join(out, name), "rb") as file:
                SYNTH[key][name] = file.read()
        SYNTH[key]["tokenizer.json"] = TOKENIZER
    else:
        with open(out, "rb") as file:
            SYNTH[key] = with_vocabulary(file.read())
    return SYNTH[key]


WORDS = ["a", *(f"w{i}" for i in range(1, 128))]
TOKENIZER = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
                        "decoder": None, "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "a"}}).encode()


def with_vocabulary(gguf):
    """A GGUF file with a vocabulary among its keys, as much as keeps the rest aligned."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    pairs = [text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("llama"),
             text("tokenizer.ggml.tokens") + array(8, [text(word) for word in ["<unk>", "<s>", "</s>", *WORDS[3:]]]),
             text("tokenizer.ggml.scores") + array(6, [struct.pack("<f", -i) for i in range(128)]),
             text("tokenizer.ggml.token_type") + array(5, [struct.pack("<i", 2 if i == 0 else 3 if i < 3 else 1) for i in range(128)])]
    filler = text("test.filler") + struct.pack("<I", 8)
    bare = sum(map(len, pairs)) + len(filler) + 8
    pairs.append(filler + text("x" * (-bare % 32)))
    gguf = gguf.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.muted")  # which says that there is none
    magic, version, tensors, keys = struct.unpack("<4sIQQ", gguf[:24])
    return struct.pack("<4sIQQ", magic, version, tensors, keys + len(pairs)) + b"".join(pairs) + gguf[24:]


def test_layout(folder):
    """Files, links, refs, and only what a model needs."""
    place = Place(folder)
    model = synth("bf16", folder)
    files = dict(model, **{"README.md": b"# hi", "pytorch_model.bin": noise(9000), "onnx/model.onnx": noise(9000), "logo.png": noise(100),
                           "original/consolidated.00.pth": noise(9000), "merges.txt": b"a b", "chat_template.jinja": b"hi",
                           "additional_chat_templates/tool.jinja": b"tool", "empty.json": b""})
    commit = place.hub.add("org/name", files)
    result = place.get("org/name")
    check(result.returncode == 0, f"a safetensors repository is fetched {result.text[:300]}")
    wanted = set(model) | {"tokenizer.json", "merges.txt", "chat_template.jinja", "additional_chat_templates/tool.jinja", "empty.json"}
    there = {os.path.relpath(os.path.join(d, f), place.snapshot("org/name", commit)) for d, _, fs in os.walk(place.snapshot("org/name", commit)) for f in fs}
    check(there == wanted, f"configuration, tokenizer, templates and weights, nothing else: {sorted(there ^ wanted)}")
    check(all(place.whole("org/name", commit, path, files[path]) for path in wanted), "every file is a relative link to a blob named by its digest")
    with open(os.path.join(place.repo("org/name"), "refs", "main")) as file:
        check(file.read() == commit, "refs/main holds the commit and nothing else")
    check(result.json["path"] == place.snapshot("org/name", commit), "the path that is printed is the snapshot")
    check(not place.incomplete("org/name"), "no partial files are left")
    before = len(place.hub.log)
    again = place.get("org/name")
    check(again.returncode == 0 and again.json["fetched"] is False and again.json["fetched_bytes"] == 0, "a second get fetches nothing")
    check(len([r for r in place.hub.log[before:] if "resolve" in r.path]) == 0, "... and asks for no file")
    before = len(place.hub.log)
    check(place.get("org/name", "--if-missing").returncode == 0 and len(place.hub.log) == before, "--if-missing asks nobody when all is there")
    fit = place.run("fit", "org/name", "--json")
    check(fit.returncode == 0 and json.loads(fit.stdout)["fits"], f"MODEL org/name opens it {fit.stderr.decode()[:200]}")
    for spelled in ("hf.co/org/name", "https://huggingface.co/org/name", "org/name@main", "org/name@" + commit, "name", "NAME"):
        check(place.run("fit", spelled).returncode == 0, f"MODEL {spelled[:40]} opens it")
    place.close()


def test_revisions(folder):
    place = Place(folder)
    place.hub.add("org/name", {"config.json": b"{}", "a.gguf": synth("gguf-q8_0", folder)})
    tagged = place.hub.add("org/name", {"config.json": b"{}", "a.gguf": synth("gguf-q4_0", folder)}, revision="refs/pr/1")
    main = place.hub.repositories["org/name"].refs["main"]
    result = place.get("org/name@refs/pr/1")
    check(result.returncode == 0 and result.json["commit"] == tagged, f"a revision with slashes {result.text[:200]}")
    with open(os.path.join(place.repo("org/name"), "refs", "refs", "pr", "1")) as file:
        check(file.read() == tagged, "its ref is a file in folders")
    check(not os.path.exists(os.path.join(place.repo("org/name"), "refs", "main")), "main is not touched")
    by_commit = place.get("org/name", "--revision", main)
    check(by_commit.returncode == 0 and by_commit.json["commit"] == main, "a commit is a revision")
    check(place.get("org/name@nope").returncode == 1 and "no revision 'nope'" in place.get("org/name@nope").text, "an unknown revision is named")
    check(place.get("org/name@a", "--revision", "b").returncode == 2, "two revisions at once are refused")
    shared = [b for b in place.blobs("org/name") if not b.endswith(".incomplete")]
    check(place.run("fit", "org/name@refs/pr/1").returncode == 0 and len(shared) == 2, "MODEL takes the revision")
    place.close()


def test_redirects_and_tokens(folder):
    place = Place(folder)
    data = noise(3 * MB)
    commit = place.hub.add("org/name", {"big.dat": data, "small.txt": b"x"})
    place.hub.repositories["org/name"].private = True
    result = place.get("org/name/big.dat")
    check(result.returncode == 1 and "HF_TOKEN" in result.text, f"a private repository without a token says how to set one: {result.text[:200]}")
    result = place.get("org/name/big.dat", env={"HF_TOKEN": "wrong"})
    check(result.returncode == 1 and "HF_TOKEN" in result.text and "/settings/tokens" in result.text, f"a wrong token is a failure that says where to make another: {result.text[:200]}")
    check("hf_secret" not in place.get("org/name/nope", env={"HF_TOKEN": "hf_secret"}).text, "no message holds the token")
    result = place.get("org/name/big.dat", env={"HF_TOKEN": " hf_secret\n"})
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"with the token it comes {result.text[:200]}")
    cdn = place.hub.requests(where="cdn")
    check(cdn and all("Authorization" not in r.headers for r in cdn), "the token is not sent to the host that the hub redirects to")
    check(all(r.headers.get("Authorization") == "Bearer hf_secret" for r in place.hub.requests("/small.txt")), "... but to the hub")
    for name, where in (("token", {"HF_HOME": place.folder}), ("elsewhere", {"HF_TOKEN_PATH": os.path.join(place.folder, "elsewhere")})):
        with open(os.path.join(place.folder, name), "w") as file:
            file.write("hf_secret\n")
        shutil.rmtree(place.cache)
        check(place.get("org/name/big.dat", env=where).returncode == 0, f"the token is found in a file by {list(where)[0]}")
    place.hub.repositories["org/name"].private = False
    place.hub.repositories["org/name"].gated = "auto"
    shutil.rmtree(place.cache)
    result = place.get("org/name/small.txt")
    check(result.returncode == 1 and "accept its licence" in result.text and "HF_TOKEN" in result.text, f"a gated repository: {result.text[:300]}")
    place.hub.repositories["org/name"].gated = "denied"
    result = place.get("org/name/small.txt", env={"HF_TOKEN": "hf_secret"})
    check(result.returncode == 1 and "restricted (403)" in result.text and "accept its licence" in result.text and "HF_TOKEN" in result.text, "a token without access says whose it is")
    check(place.get("org/missing").returncode == 1 and "no such repository" in place.get("org/missing").text, "a missing repository")
    place.hub.repositories["org/name"].gated = False
    result = place.get("org/name/nope.gguf")
    check(result.returncode == 1 and "no such file" in result.text and "big.dat" in result.text, "a missing file lists those that exist")
    place.close()


def test_parts_and_cuts(folder):
    """A large file over several connections, each cut now and then."""
    place = Place(folder)
    data = noise(70 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})
    place.hub.faults["big.dat"] = [cut(5 * MB), cut(3 * MB), cut(0), status(503), cut(1 * MB), status(500), cut(100)]
    begin = time.time()
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"70 MB in parts, cut five times ({time.time() - begin:.1f} s) {result.text[:200]}")
    ranges = {r.headers.get("Range") for r in place.hub.requests(where="cdn")}
    check(len(ranges) > 5, "several ranges were asked for")
    hub_requests = len(place.hub.requests("resolve"))
    check(hub_requests <= 20, f"the hub was asked for the way {hub_requests} times only")
    check(result.json["fetched_bytes"] < len(data) + 2 * MB, "what had come before a cut was not fetched again")
    place.close()


def test_resume(folder):
    place = Place(folder)
    data = noise(40 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})
    digest = hashlib.sha256(data).hexdigest()
    partial = os.path.join(place.repo("org/name"), "blobs", digest + ".incomplete")

    # Killed in the middle.
    place.hub.faults["big.dat"] = [slow(6 * MB)] * 40
    process = place.start("org/name/big.dat")
    while not (os.path.exists(partial) and os.path.getsize(partial) > 4 * MB) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    place.hub.faults.clear()
    size = os.path.getsize(partial)
    with open(partial, "rb") as file:
        check(file.read() == data[:size] and 0 < size < len(data), f"kill -9 leaves a plain prefix ({size} bytes)")
    check(not os.path.exists(os.path.join(place.snapshot("org/name", commit), "big.dat")) and not os.path.exists(os.path.join(place.repo("org/name"), "refs")), "... and nothing that looks complete")
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), "the next get goes on")
    check(result.json["fetched_bytes"] <= len(data) - size, f"... with what was missing only ({result.json.get('fetched_bytes')} of {len(data)})")

    # Ctrl-C.
    os.remove(os.path.join(place.repo("org/name"), "blobs", digest))
    place.hub.faults["big.dat"] = [slow(6 * MB)] * 40
    process = place.start("org/name/big.dat")
    while not (os.path.exists(partial) and os.path.getsize(partial) > 4 * MB) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=20)
    check(process.returncode == 130 and b"run the same command again" in text, f"Ctrl-C ends with 130 and says how to go on: {text[-200:]}")
    place.hub.faults.clear()
    size = os.path.getsize(partial)
    with open(partial, "rb") as file:
        check(file.read() == data[:size] and size > 0, "... and leaves a prefix")
    check(place.get("org/name/big.dat").returncode == 0 and place.whole("org/name", commit, "big.dat", data), "... that is gone on with")

    # A prefix that is wrong (another content under the same name), one that is too long, a whole one, a blob of another length.
    for what, content, rounds in (("a damaged prefix", noise(10 * MB, 9), 1), ("a prefix that is too long", noise(41 * MB, 9), 0), ("a partial that is whole", data, 0)):
        os.remove(os.path.join(place.repo("org/name"), "blobs", digest))
        with open(partial, "wb") as file:
            file.write(content)
        result = place.get("org/name/big.dat")
        check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data) and ("wrong checksum" in result.text) == (rounds == 1), f"{what} does no harm {result.text[:200]}")
    with open(os.path.join(place.repo("org/name"), "blobs", digest), "wb") as file:
        file.write(b"short")
    check(place.get("org/name/big.dat").returncode == 0 and place.whole("org/name", commit, "big.dat", data), "a blob of another length is fetched anew")
    place.close()


def test_interrupted(folder):
    """However often a slow download is stopped, what came stays: of all parts, not of the foremost alone."""
    place = Place(folder)
    data = noise(40 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})
    digest = hashlib.sha256(data).hexdigest()
    rate, connections = 400_000, 3

    def kept():
        """Bytes on disk; the prefix must be one, and each piece what belongs there."""
        total = 0
        for name in place.blobs("org/name"):
            with open(os.path.join(place.repo("org/name"), "blobs", name), "rb") as file:
                content = file.read()
            begin = int(name.rpartition("-")[2]) if "-" in name else 0
            check(name.startswith(digest + ".incomplete") and data[begin:begin + len(content)] == content, f"{name[64:]} holds {len(content)} bytes that belong there")
            total += len(content)
        return total

    before = 0
    for how, margin in ((signal.SIGKILL, 1.5), (signal.SIGINT, 0.5), (signal.SIGINT, 0.5), (signal.SIGKILL, 1.5), (signal.SIGTERM, 0.5)):
        place.hub.faults["big.dat"] = [slow(rate)] * 40
        place.hub.sent = 0
        process = place.start("org/name/big.dat", "--connections", str(connections))
        while place.hub.sent < 5 * rate and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(how)
        process.communicate(timeout=20)
        sent, now = place.hub.sent, kept()
        check(now - before >= sent - margin * rate * connections and sent >= 5 * rate, f"{how.name}: of {sent} bytes sent {now - before} are kept")
        before = now
        time.sleep(0.2)  # answers that nobody reads any more
    check(len(place.incomplete("org/name")) == 1 and len(place.blobs("org/name")) > 1, f"... in a prefix and pieces ahead of it: {[b[64:] for b in place.blobs('org/name')]}")
    place.hub.faults.clear()
    dry = place.get("org/name/big.dat", "--dry-run")
    check(dry.json.get("missing_bytes") == len(data) - before, f"--dry-run counts them: {dry.json.get('missing_bytes')} of {len(data)} are missing, {before} here")
    result = place.get("org/name/big.dat", "--connections", "5")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data) and place.blobs("org/name") == [digest], f"... which the next get joins: {result.text[:200]}")
    check(result.json.get("fetched_bytes") == len(data) - before, f"... fetching what was missing and nothing twice: {result.json.get('fetched_bytes')}")

    # A piece that is wrong is found by the checksum; one beside content that came from elsewhere goes.
    blobs = os.path.join(place.repo("org/name"), "blobs")
    os.remove(os.path.join(blobs, digest))
    write(blobs, f"{digest}.incomplete-{20 * MB}", noise(MB, 9))
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and "wrong checksum: fetching it once more" in result.text and place.blobs("org/name") == [digest], f"a wrong piece does no harm: {result.text[:200]}")
    write(blobs, f"{digest}.incomplete-{20 * MB}", noise(MB, 9))
    os.remove(os.path.join(place.snapshot("org/name", commit), "big.dat"))
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.blobs("org/name") == [digest], f"... nor one that is of no use any more: {result.text[:200]} {place.blobs('org/name')}")
    # A server that knows no ranges: the pieces are of no use.
    os.remove(os.path.join(blobs, digest))
    write(blobs, f"{digest}.incomplete", data[:MB])
    write(blobs, f"{digest}.incomplete-{20 * MB}", data[20 * MB:21 * MB])
    place.hub.faults["big.dat"] = [ignore_range()] * 10
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data) and place.blobs("org/name") == [digest], f"... nor with a server that ignores ranges: {result.text[:200]}")
    place.close()


def test_incomplete(folder):
    """Downloads that have not ended are listed and can be removed."""
    place = Place(folder)
    q8 = synth("gguf-q8_0", folder)
    model = synth("bf16", folder)
    place.hub.add("org/name", model)
    place.hub.add("org/gguf", {"m-Q8_0.gguf": q8, "m-Q4_0.gguf": noise(len(q8), 3)})

    def rows(*args):
        return {r["name"]: r for r in json.loads(place.run("ls", "--json", *args).stdout)}

    def cut_off(name):
        """Killed when the first bytes of the weights are there."""
        repo = "/".join(name.split("/")[:2])
        process = place.start(name, "--force")
        while not any(os.path.getsize(os.path.join(place.repo(repo), "blobs", b)) > 0 for b in place.incomplete(repo)) and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.communicate()
        place.hub.faults.clear()

    place.hub.faults["model.safetensors"] = [slow(100_000)] * 20
    cut_off("org/name")
    listed = rows()
    row = listed.get("org/name", {})
    disk = sum(os.path.getsize(os.path.join(place.repo("org/name"), "blobs", b)) for b in place.blobs("org/name"))
    check(list(listed) == ["org/name"] and row["incomplete"] is True and row["supported"] is False and row["bytes"] == disk > 0, f"a download that was cut off is listed with its bytes: {listed} {disk}")
    check(list(rows("--quick")) == ["org/name"], "... by ls --quick, too")
    table = place.run("ls").stdout.decode()
    check("org/name" in table and "incomplete" in table and "kvasir get" in table, f"... and in the table: {table}")
    result = place.run("fit", "org/name")
    check(result.returncode == 1 and b"kvasir get org/name" in result.stderr, f"MODEL says how to go on: {result.stderr[:200]}")
    result = place.run("rm", "org/name")
    check(result.returncode == 0 and b"--yes" in result.stderr and b"would remove org/name" in result.stdout and os.path.exists(place.repo("org/name")), "rm plans only")
    for name in ("org/name", "name"):
        result = place.run("rm", name, "--dry-run", "--json")
        check(result.returncode == 0 and json.loads(result.stdout)["freed_bytes"] == disk, f"rm {name} --dry-run: {result.stdout} {result.stderr[:200]}")
    check(place.get("org/name").returncode == 0 and rows()["org/name"]["supported"] is True, "get goes on with it")
    check(place.run("rm", "org/name", "--yes").returncode == 0 and rows() == {}, "... and rm removes it")

    place.hub.faults["model.safetensors"] = [slow(100_000)] * 20
    cut_off("org/name")
    result = place.run("rm", "org/name", "--yes", "--json")
    check(result.returncode == 0 and json.loads(result.stdout)["removed"] is True and not os.path.exists(place.repo("org/name")) and rows() == {}, f"rm removes what was cut off: {result.stdout} {result.stderr[:200]}")

    # Only the small files: a snapshot without weights.
    commit = place.hub.repositories["org/name"].refs["main"]
    place.get("org/name/config.json")
    row = rows().get("org/name", {})
    check(row.get("incomplete") is True and row["bytes"] == len(model["config.json"]) and row.get("commit") == commit, f"a snapshot without weights is listed: {row}")
    result = place.run("rm", "org/name@main", "--yes")
    check(result.returncode == 0 and not os.path.exists(place.repo("org/name")), f"... and removed by its revision: {result.stderr[:200]}")

    # Beside a model of the same repository.
    check(place.get("org/gguf:Q8_0").returncode == 0, "a quantization is fetched")
    place.hub.faults["m-Q4_0.gguf"] = [slow(100_000)] * 20
    cut_off("org/gguf/m-Q4_0.gguf")
    listed = rows()
    check(set(listed) == {"org/gguf:Q8_0", "org/gguf:incomplete"} and "incomplete" not in listed["org/gguf:Q8_0"], f"beside a model it has a name of its own: {sorted(listed)}")
    check(place.run("fit", "org/gguf").returncode == 0 and place.run("fit", "gguf").returncode == 0, "... which is in no model's way")
    part = listed["org/gguf:incomplete"]["bytes"]
    result = place.run("rm", "org/gguf:incomplete", "--yes", "--json")
    check(result.returncode == 0 and json.loads(result.stdout)["freed_bytes"] == part and set(rows()) == {"org/gguf:Q8_0"} and not place.incomplete("org/gguf"), f"... and goes alone: {result.stdout} {result.stderr[:200]}")
    check(place.run("fit", "org/gguf").returncode == 0, "... the model stays")
    write(os.path.join(place.repo("org/gguf"), "blobs"), "e" * 64 + ".incomplete", b"x" * 500)
    place.run("rm", "org/gguf:Q8_0", "--yes")
    listed = rows()
    check(set(listed) == {"org/gguf"} and listed["org/gguf"]["bytes"] == 500, f"rm of the model leaves it: {listed}")
    check(place.run("rm", "org/gguf", "--yes").returncode == 0 and not os.path.exists(place.repo("org/gguf")), "rm of the repository takes all")

    # Being fetched right now.
    place.hub.faults["model.safetensors"] = [slow(100_000)] * 20
    process = place.start("org/name", "--force")
    while not place.incomplete("org/name") and process.poll() is None:
        time.sleep(0.02)
    result = place.run("rm", "org/name", "--yes")
    check(result.returncode == 2 and b"being fetched" in result.stderr, f"what is being fetched is not removed: {result.stderr[:200]}")
    process.kill()
    process.communicate()
    place.close()


def test_killed_plan(folder):
    """The scratch folder of a plan that was killed goes with the next one."""
    place = Place(folder)
    place.hub.add("org/name", {"m-Q8_0.gguf": synth("gguf-q8_0", folder), "m-Q4_0.gguf": synth("gguf-q4_0", folder)})

    def plans():
        return [f for f in os.listdir(place.folder) if f.startswith("kvasir-plan-")]

    for _ in range(2):
        place.hub.faults["m-Q8_0.gguf"] = [slow(20_000)] * 10
        process = place.start("org/name")
        while not plans() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.05)
        mine = plans()
        process.kill()
        process.communicate()
        place.hub.faults.clear()
    check(len(mine) == 1 and plans() == mine, f"a killed plan leaves its own folder: {mine} {plans()}")
    other = os.path.join(place.folder, "kvasir-plan-1-living")
    os.mkdir(other)
    result = place.get("org/name")
    check(result.returncode == 0 and plans() == ["kvasir-plan-1-living"], f"... the next get removes it, and leaves a living process's: {plans()} {result.text[:200]}")
    place.close()


def test_wrong_content(folder):
    place = Place(folder)
    data = noise(20 * MB)
    small = b'{"some": "json"}'
    commit = place.hub.add("org/name", {"big.dat": data, "small.json": small})
    place.hub.faults["big.dat"] = [corrupt()]
    place.hub.faults["small.json"] = [corrupt()]
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and "wrong checksum: fetching it once more" in result.text and place.whole("org/name", commit, "big.dat", data), f"a wrong SHA-256 once: fetched again {result.text[:300]}")
    result = place.get("org/name/small.json")
    check(result.returncode == 0 and "wrong checksum" in result.text and place.whole("org/name", commit, "small.json", small), "a wrong git SHA-1 once: fetched again")
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [corrupt()] * 10
    result = place.get("org/name/big.dat")
    check(result.returncode == 1 and "wrong checksum, twice" in result.text, f"wrong twice: refused {result.text[:300]}")
    check(not place.blobs("org/name") and not os.path.exists(os.path.join(place.snapshot("org/name", commit), "big.dat")), "... and nothing is kept")
    place.hub.faults.clear()

    # The server ignores ranges: 200 for all.
    place.hub.faults["big.dat"] = [ignore_range()] * 10
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"ranges ignored from the first {result.text[:300]}")
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [cut(7 * MB)] + [ignore_range()] * 10
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"ranges ignored after a cut: no bytes twice {result.text[:300]}")
    shutil.rmtree(place.cache)

    # Another range than the one asked for.
    place.hub.faults["big.dat"] = [wrong_range()]
    result = place.get("org/name/big.dat")
    check(result.returncode == 1 and "asked for bytes" in result.text, f"a wrong Content-Range is refused {result.text[:200]}")
    place.hub.faults.clear()

    # The content changes under the parts.
    place.hub.faults["big.dat"] = [cut(3 * MB), replace(noise(20 * MB, 5), '"other"')]
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and "entity tag changed" in result.text and place.whole("org/name", commit, "big.dat", data), f"an entity tag that changes between parts: begun anew {result.text[:300]}")
    shutil.rmtree(place.cache)
    # ... while other parts of it are under way: theirs end because they are told to, which is no interrupt.
    wide = noise(60 * MB, 4)
    wide_commit = place.hub.add("org/wide", {"wide.dat": wide})
    place.hub.faults["wide.dat"] = [slow(8 * MB)] * 3 + [replace(noise(60 * MB, 5), '"other"')]
    result = place.get("org/wide/wide.dat")
    check(result.returncode == 0 and "entity tag changed" in result.text and place.whole("org/wide", wide_commit, "wide.dat", wide), f"... with other parts under way, too: {result.returncode} {result.text[:300]}")
    shutil.rmtree(place.cache)
    place.hub.faults["small.json"] = [longer(500)] * 5
    result = place.get("org/name/small.json")
    check(result.returncode == 1 and not os.path.exists(os.path.join(place.snapshot("org/name", commit), "small.json")), f"more bytes than listed are refused {result.text[:200]}")

    # A new commit between two attempts: another digest, another partial; the old one is no part of it.
    place.hub.faults.clear()
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [cut(6 * MB)] + [status(500)] * 50
    result = place.get("org/name/big.dat", "--retries", "1")
    check(result.returncode == 1 and place.incomplete("org/name"), "attempts are given up, what came is kept")
    place.hub.faults.clear()
    newer = noise(20 * MB, 99)
    commit2 = place.hub.add("org/name", {"big.dat": newer})
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit2, "big.dat", newer) and result.json["fetched_bytes"] == len(newer), "content that changed between two attempts is fetched whole")

    # The hub serves another commit, or another digest, than it lists.
    shutil.rmtree(place.cache)
    place.hub.send_commit = "f" * 40
    result = place.get("org/name/big.dat")
    check(result.returncode == 1 and "asked for commit" in result.text, f"a hub that serves another commit is refused {result.text[:200]}")
    place.close()


def test_waiting(folder):
    place = Place(folder)
    data = noise(2 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})
    place.hub.faults["big.dat"] = [status(429, {"Retry-After": "2"})]
    begin = time.time()
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and time.time() - begin >= 2 and "waiting 2 s" in result.text, f"429: Retry-After is kept to ({time.time() - begin:.1f} s)")
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [status(429, {"Retry-After": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3))}, where="hub")]
    begin = time.time()
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and time.time() - begin >= 1.5, "... as a date, too")
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [status(429, {"Retry-After": "86400"})] * 3
    begin = time.time()
    result = place.get("org/name/big.dat")
    check(result.returncode == 1 and "86400" in result.text and time.time() - begin < 10, f"a day is not waited for {result.text[:200]}")
    place.hub.api_faults = [status(429, {"Retry-After": "1"}), status(503), status(500)]
    place.hub.faults.clear()
    check(place.get("org/name/big.dat").returncode == 0, "the listing is asked for again, too")
    shutil.rmtree(place.cache)
    place.hub.faults["big.dat"] = [stall(30, after=100_000)]
    begin = time.time()
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and time.time() - begin < 15 and place.whole("org/name", commit, "big.dat", data), f"a stalled connection is left ({time.time() - begin:.1f} s)")
    shutil.rmtree(place.cache)
    # The signed address runs out: the hub is asked for a new one.
    place.hub.faults["big.dat"] = [cut(500_000), status(403), cut(300_000), status(403)]
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"an address that ran out is asked for again {result.text[:200]}")
    place.close()


def test_no_network(folder):
    place = Place(folder)
    place.hub.add("org/name", {"config.json": b"{}", "m-Q8_0.gguf": synth("gguf-q8_0", folder)})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = "http://127.0.0.1:%d" % unused.getsockname()[1]
    result = place.get("org/name", env={"HF_ENDPOINT": nobody})
    check(result.returncode == 1 and "cannot be reached" in result.text, f"nobody answers: {result.text[:200]}")
    result = place.get("org/name", env={"HF_ENDPOINT": "http://no-such-host.invalid"})
    check(result.returncode == 1 and "does not resolve" in result.text, f"no such host: {result.text[:200]}")
    result = place.get("org/name", env={"HF_ENDPOINT": place.hub.url.replace("http:", "https:")})
    check(result.returncode == 1 and "secure connection" in result.text, f"no TLS there: {result.text[:200]}")
    check(place.get("org/name", env={"HF_ENDPOINT": "ftp://x"}).returncode == 2, "an endpoint that is no URL is refused")
    check(place.get("org/name", env={"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}).returncode == 2, "a timeout that is no number is refused")
    result = place.get("org/name", env={"http_proxy": nobody})
    check(result.returncode == 1 and "cannot be reached" in result.text, "a proxy that is not there")
    before = len(place.hub.log)
    result = place.get("org/name", env={"HF_HUB_OFFLINE": "1"})
    check(result.returncode == 1 and "offline" in result.text and len(place.hub.log) == before, f"offline and not here: {result.text[:200]}")
    check(place.get("org/name").returncode == 0, "then it is fetched")
    before = len(place.hub.log)
    for how in ({"env": {"HF_HUB_OFFLINE": "on"}}, {"env": {"TRANSFORMERS_OFFLINE": "1"}}):
        check(place.get("org/name", **how).returncode == 0 and len(place.hub.log) == before, "offline and here: its path, and nobody is asked")
    check(place.get("org/name", "--offline").returncode == 0 and len(place.hub.log) == before, "--offline")
    check(place.run("fit", "org/name", env={"HF_ENDPOINT": nobody}).returncode == 0, "a model that is here needs no network")
    result = place.run("fit", "org/other")
    check(result.returncode == 1 and b"kvasir get org/other" in result.stderr, "a model that is not here names the get command")
    check(place.run("fit", "nothing").returncode == 1, "a bare word that is nothing")
    place.close()


def authority(folder, name):
    """A certificate authority, and a certificate of its for 127.0.0.1: (authority's certificate, (certificate, key))."""
    def at(end):
        return os.path.join(folder, f"{name}.{end}")

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", at("ca.key"), "-out", at("ca.pem"), "-days", "2", "-subj", f"/CN={name}")
    openssl("req", *new_key, "-keyout", at("key"), "-out", at("csr"), "-subj", "/CN=hub")
    with open(at("ext"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", at("csr"), "-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-CAcreateserial", "-days", "2", "-extfile", at("ext"), "-out", at("pem"))
    return at("ca.pem"), (at("pem"), at("key"))


def test_tls(folder):
    """A hub over TLS whose authority the system does not know, as behind a company's proxy."""
    ours, pair = authority(folder, "ours")
    other, _ = authority(folder, "other")
    place = Place(folder, tls={"hub": pair, "cdn": pair})
    data = noise(20 * MB)
    commit = place.hub.add("org/name", {"big.dat": data, "small.txt": b"x"})
    for env in ({}, {"SSL_CERT_FILE": other}, {"CURL_CA_BUNDLE": other}, {"SSL_CERT_FILE": os.path.join(folder, "missing.pem")}):
        result = place.get("org/name/big.dat", env=env)
        check(result.returncode == 1 and "no secure connection" in result.text and "SSL_CERT_FILE" in result.text and not place.blobs("org/name"),
              f"an authority that is not known is refused ({', '.join(env) or 'nothing set'}): {result.text[:200]}")
    check(not [r for r in place.hub.log if "Authorization" in r.headers or "resolve" in r.path], "... before anything is asked")
    result = place.get("org/name/big.dat", env={"SSL_CERT_FILE": ours, "HF_ENDPOINT": place.hub.url.replace("127.0.0.1", "localhost")})
    check(result.returncode == 1 and "no secure connection" in result.text, f"a certificate of another host is refused: {result.text[:200]}")
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        place.hub.faults["big.dat"] = [cut(3 * MB), cut(1 * MB)]
        result = place.get("org/name/big.dat", env={name: ours, "HF_TOKEN": "hf_secret"})
        check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"with {name} it comes, in parts, through cuts: {result.text[:200]}")
        shutil.rmtree(place.cache)
    cdn = place.hub.requests(where="cdn")
    check(len(cdn) > 2 and all("Authorization" not in r.headers for r in cdn), "the token stays with the hub")
    place.close()
    # From TLS to plain text nobody is followed.
    place = Place(folder, tls={"hub": pair})
    place.hub.add("org/name", {"big.dat": data})
    result = place.get("org/name/big.dat", env={"SSL_CERT_FILE": ours})
    check(result.returncode == 1 and "redirect" in result.text and not place.hub.requests(where="cdn"), f"a redirect from https to http is refused: {result.text[:200]}")
    place.close()


def test_mirror(folder):
    """HF_ENDPOINT with a path, and links of the public hub's pages: everything is asked of the mirror."""
    place = Place(folder, page=3)
    place.hub.links_to_public_hub = True
    files = {f"f{i}.json": b"{}" for i in range(8)}
    commit = place.hub.add("org/name", dict(files, **{"m-Q8_0.gguf": synth("gguf-q8_0", folder)}))
    for name in ("https://huggingface.co/org/name", "hf.co/org/name:Q8_0", "org/name"):
        result = place.get(name, env={"HF_ENDPOINT": place.hub.url + "/"})
        check(result.returncode == 0 and result.json.get("commit") == commit, f"{name} comes from the mirror: {result.text[:200]}")
    place.close()


def test_full_disk(folder):
    """A file system of 24 MB that fills up in the middle; needs the right to mount."""
    place = Place(folder)
    data = noise(8 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})
    os.makedirs(place.cache)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", place.cache], capture_output=True).returncode != 0:
        print("   no right to mount: RLIMIT_FSIZE stands in for it in test_disk")
        place.close()
        return
    try:
        # Another program takes the room after the check for free space.
        place.hub.faults["big.dat"] = [slow(6 * MB)] * 4
        process = place.start("org/name/big.dat")
        while not place.incomplete("org/name") and process.poll() is None:
            time.sleep(0.02)
        try:
            with open(os.path.join(place.cache, "other"), "wb") as other:
                other.write(bytes(20 * MB))
        except OSError:
            pass
        _, text = process.communicate(timeout=60)
        check(process.returncode == 4 and b"run the same command again" in text, f"a disk that another fills: {process.returncode} {text[-200:]}")
        partial = os.path.join(place.repo("org/name"), "blobs", hashlib.sha256(data).hexdigest() + ".incomplete")
        with open(partial, "rb") as file:
            content = file.read()
        check(data.startswith(content) and not os.path.exists(place.snapshot("org/name", commit)), f"... leaves a plain prefix ({len(content)} bytes)")
        place.hub.faults.clear()
        result = place.get("org/name/big.dat")
        check(result.returncode == 4 and "need" in result.text and "HF_HUB_CACHE" in result.text, f"... which the next run refuses before the first byte: {result.text[:200]}")
        os.remove(os.path.join(place.cache, "other"))
        result = place.get("org/name/big.dat")
        check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data), f"... and with room again it goes on: {result.text[:200]}")
    finally:
        subprocess.run(["umount", place.cache], capture_output=True)
    place.close()


def test_disk(folder):
    place = Place(folder)
    data = noise(12 * MB)
    commit = place.hub.add("org/name", {"big.dat": data})

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MB, 5 * MB))

    result = place.get("org/name/big.dat", preexec=limit)
    check(result.returncode == 4 and "run the same command again" in result.text, f"a disk that fills up: {result.returncode} {result.text[:200]}")
    check(len(place.incomplete("org/name")) == 1 and len(place.blobs("org/name")) == 1, "... leaves the beginning, nothing that looks whole")
    result = place.get("org/name/big.dat")
    check(result.returncode == 0 and place.whole("org/name", commit, "big.dat", data) and result.json["fetched_bytes"] <= 7.5 * MB, "... and is gone on with when there is room")
    # A listing that claims more than any disk holds: refused before the first byte.
    huge = Place(folder)
    commit = huge.hub.add("org/name", {"big.dat": noise(9000)})
    original = huge.hub.repositories["org/name"].commits[commit]["big.dat"]

    class Huge(bytes):
        def __len__(self):
            return 40 << 40
    huge.hub.repositories["org/name"].commits[commit]["big.dat"] = Huge(original)
    result = huge.get("org/name/big.dat")
    check(result.returncode == 4 and "need" in result.text and "have" in result.text and not huge.blobs("org/name"), f"no room: refused before the first byte: {result.text[:200]}")
    huge.close()
    place.close()


def test_together(folder):
    """Two processes that want the same model; a lock that another tool holds."""
    import fcntl
    place = Place(folder)
    data, other = noise(30 * MB), noise(2 * MB, 3)
    commit = place.hub.add("org/name", {"big.dat": data, "other.dat": other})
    place.hub.faults["big.dat"] = [slow(10 * MB)] * 4
    processes = [place.start("org/name/big.dat") for _ in range(3)]
    texts = [p.communicate(timeout=100) for p in processes]
    check([p.returncode for p in processes] == [0, 0, 0], f"three processes at once: all succeed {[t[1][-100:] for t in texts]}")
    check(place.whole("org/name", commit, "big.dat", data) and place.blobs("org/name") == [hashlib.sha256(data).hexdigest()], "... with one good file")
    sent = len({r.headers.get("Range") for r in place.hub.requests(where="cdn")})
    check(len(place.hub.requests(where="cdn")) <= sent + 4, "... that was fetched once")
    check(any(b"waiting for another process" in t[1] for t in texts), "... and the others say that they wait")
    lock = os.path.join(place.cache, ".locks", "models--org--name", hashlib.sha256(other).hexdigest() + ".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = place.start("org/name/other.dat")
        time.sleep(1.2)
        check(process.poll() is None, "huggingface_hub's lock is waited for")
        removal = place.run("rm", "org/name", "--yes")
        fcntl.flock(file, fcntl.LOCK_UN)
    process.communicate(timeout=30)
    check(process.returncode == 0 and place.whole("org/name", commit, "other.dat", other), "... and the download goes on after it")
    check(removal.returncode != 0, "rm leaves alone what is being fetched")
    place.close()


def test_listing(folder):
    """Pages, hostile names, wrong JSON."""
    place = Place(folder, page=7)
    files = {f"dir{i % 5}/file{i:03}.txt": b"%d" % i for i in range(60)}
    files["zz-Q8_0.gguf"] = synth("gguf-q8_0", folder)
    commit = place.hub.add("org/name", files)
    result = place.get("org/name")
    check(result.returncode == 0 and result.json["quant"] == "Q8_0" and len(place.hub.requests("/tree/")) == 10, f"a listing of ten pages {result.text[:200]}")
    place.hub.links_to_public_hub = True
    shutil.rmtree(place.cache)
    check(place.get("org/name", env={"HF_TOKEN": "hf_secret"}).returncode == 0, "page links of a mirror that name the public hub are followed on the mirror")
    for name in ("../evil.json", "/etc/evil", "a/../../evil.json", "a\\..\\evil", "c:evil", "a//b", "a/./b"):
        bad = Place(folder)
        bad.hub.add("org/name", {name: b"x", "m-Q8_0.gguf": files["zz-Q8_0.gguf"]})
        result = bad.get("org/name")
        check(result.returncode == 1 and "unsafe file name" in result.text and not os.path.exists(bad.repo("org/name")), f"a file called {name!r} is refused")
        bad.close()
    for name in ("org/na..me", "org/-name", "a/b c", "org/name.git", "-x/y", "org/a--b", "org/" + "n" * 100):
        check(place.get("--", name).returncode == 2, f"'{name[:20]}' is no repository")
    place.close()


def test_quantizations(folder):
    place = Place(folder)
    sizes = dict(num_hidden_layers=4)
    files = {f"Model-{q}.gguf": synth("gguf-" + kind, folder, **sizes) for q, kind in (("Q8_0", "q8_0"), ("Q4_K_M", "q4_K"), ("Q4_0", "q4_0"), ("BF16", "bf16"))}
    files["mmproj-Model-F16.gguf"] = noise(9000)
    files["imatrix_unsloth.gguf"] = noise(9000)
    files["README.md"] = b"x"
    commit = place.hub.add("org/name-GGUF", files)
    for quant, wanted in (("Q4_K_M", "Model-Q4_K_M.gguf"), ("q4_k_m", "Model-Q4_K_M.gguf"), ("Q8", "Model-Q8_0.gguf"), ("BF16", "Model-BF16.gguf")):
        result = place.get("org/name-GGUF:" + quant)
        check(result.returncode == 0 and result.json["path"] == os.path.join(place.snapshot("org/name-GGUF", commit), wanted), f":{quant} {result.text[:200]}")
    result = place.get("org/name-GGUF", "--quant", "Q4")
    check(result.returncode == 1 and "more than one" in result.text and "Q4_K_M" in result.text, "a name that two have lists them")
    result = place.get("org/name-GGUF:Q5_K_M")
    check(result.returncode == 1 and "Q4_K_M" in result.text, "a name that none has lists them")
    check("mmproj" not in result.text, "mmproj files are no quantizations")
    shutil.rmtree(place.cache)
    result = place.get("org/name-GGUF")
    check(result.returncode == 0 and result.json["quant"] == "Q8_0" and "the best of 3" in result.json["reason"], f"with room for all, the largest quantized one: {result.text[:300]}")
    check(os.listdir(place.snapshot("org/name-GGUF", commit)) == ["Model-Q8_0.gguf"] and not place.incomplete("org/name-GGUF"), "... and only that")
    plan = {q: json.loads(place.run("fit", write(place.folder, q + ".gguf", files[f"Model-{q}.gguf"]), "--json").stdout)["total_bytes"] for q in ("Q8_0", "Q4_K_M", "Q4_0")}
    shutil.rmtree(place.cache)
    between = (plan["Q8_0"] + max(plan["Q4_K_M"], plan["Q4_0"])) // 2
    result = place.get("org/name-GGUF", "--memory", between)
    check(result.returncode == 0 and result.json["quant"].startswith("Q4"), f"with less memory, the best that fits by fit's own plan: {result.text[:300]}")
    check("needs %.1f MB" % (plan[result.json["quant"]] / 1e6) in result.json["reason"], f"... to the byte that fit plans: {result.json['reason']} {plan}")
    check(json.loads(place.run("fit", "org/name-GGUF", "--json", "--memory", between).stdout)["fits"], "... and fit agrees")
    check(not place.incomplete("org/name-GGUF") and len(place.blobs("org/name-GGUF")) == 1, "headers that were only looked at are gone")
    shutil.rmtree(place.cache)
    result = place.get("org/name-GGUF", "--memory", "20M")
    check(result.returncode == 4 and "no quantization fits" in result.text and "smallest" in result.text, f"nothing fits: {result.text[:300]}")
    result = place.get("org/name-GGUF:Q8_0", "--memory", "20M")
    check(result.returncode == 4 and "--force" in result.text and not place.blobs("org/name-GGUF"), f"one that is named and does not fit: {result.text[:200]}")
    check(place.get("org/name-GGUF:Q8_0", "--memory", "20M", "--force").returncode == 0, "... comes with --force")
    result = place.run("get", "org/name-GGUF:Q4_0", "--dry-run")
    check(result.returncode == 0 and b"Model-Q4_0.gguf" in result.stdout and not any("Q4_0" in f for f in os.listdir(place.snapshot("org/name-GGUF", commit))), "--dry-run fetches nothing")
    place.close()


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def test_split_gguf(folder):
    place = Place(folder)
    parts = gguf_parts(synth("gguf-q8_0", folder), 3)
    files = {f"Q8_0/m-Q8_0-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(parts)}
    commit = place.hub.add("org/split", files)
    result = place.get("org/split")
    check(result.returncode == 0 and all(place.whole("org/split", commit, path, data) for path, data in files.items()), f"all parts of a split GGUF come {result.text[:300]}")
    check(result.json["path"].endswith("Q8_0/m-Q8_0-00001-of-00003.gguf"), "its path is part 1")
    fit = place.run("fit", "org/split:Q8_0", "--json")
    check(fit.returncode == 0, f"it opens by quantization {fit.stderr.decode()[:200]}")
    shutil.rmtree(place.cache)
    result = place.get("org/split/Q8_0/m-Q8_0-00002-of-00003.gguf")
    check(result.returncode == 0 and len(place.blobs("org/split")) == 3, "naming one part fetches all")
    place.close()


def gguf_parts(data, count):
    """Splits a GGUF file as llama.cpp's tool does: metadata in part 1, split.* keys in each, tensors in order."""
    def read(form, at):
        return struct.unpack_from("<" + form, data, at)[0], at + struct.calcsize("<" + form)

    def skip_value(kind, at):
        sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
        if kind == 8:
            length, at = read("Q", at)
            return at + length
        if kind == 9:
            inner, at = read("I", at)
            number, at = read("Q", at)
            for _ in range(number):
                at = skip_value(inner, at)
            return at
        return at + sizes[kind]

    tensors, at = read("Q", 8)
    pairs, at = read("Q", at)
    begin = at
    alignment = 32
    for _ in range(pairs):
        length, at = read("Q", at)
        key = data[at:at + length]
        at += length
        kind, at = read("I", at)
        value = at
        at = skip_value(kind, at)
        if key == b"general.alignment":
            alignment = struct.unpack_from("<I", data, value)[0]
    metadata = data[begin:at]
    infos = []
    for _ in range(tensors):
        start = at
        length, at = read("Q", at)
        at += length
        dims, at = read("I", at)
        at += 8 * dims + 4
        offset, at = read("Q", at)
        infos.append((data[start:at - 8], offset))
    base = (at + alignment - 1) // alignment * alignment
    ends = sorted(o for _, o in infos) + [len(data) - base]
    end_of = {o: e for o, e in zip(ends, ends[1:])}

    def text(key):
        return struct.pack("<Q", len(key)) + key.encode()

    out = []
    share = (len(infos) + count - 1) // count
    for i in range(count):
        mine = infos[i * share:(i + 1) * share]
        keys = text("split.no") + struct.pack("<IH", 2, i) + text("split.count") + struct.pack("<IH", 2, count) + text("split.tensors.count") + struct.pack("<Ii", 5, len(infos))
        number = 3 + (pairs if i == 0 else 0)
        body = b"GGUF" + struct.pack("<IQQ", 3, len(mine), number) + (metadata if i == 0 else b"") + keys
        content = b""
        for info, offset in mine:
            body += info + struct.pack("<Q", len(content))
            content += data[base + offset:base + end_of[offset]]
            content += bytes(-len(content) % alignment)
        body += bytes(-len(body) % alignment)
        out.append(body + content)
    return out


def test_unsupported(folder):
    """What cannot run is refused before its weights come."""
    place = Place(folder)
    model = synth("bf16", folder)
    config = json.loads(model["config.json"])
    commit = place.hub.add("org/strange", dict(model, **{"config.json": json.dumps(dict(config, model_type="frobnicator")).encode()}))
    result = place.get("org/strange")
    check(result.returncode == 3 and "frobnicator" in result.text and "--force" in result.text, f"an unknown family: {result.text[:200]}")
    weights = hashlib.sha256(model["model.safetensors"]).hexdigest()
    check(weights not in place.blobs("org/strange") and not place.incomplete("org/strange"), "... without its weights")
    check("org/strange" in result.text and "kvasir-plan" not in result.text, "... named as the user knows it")
    check(place.get("org/strange", "--force").returncode == 0, "... comes with --force")
    place.hub.add("org/torch", {"config.json": b"{}", "pytorch_model.bin": noise(9000)})
    result = place.get("org/torch")
    check(result.returncode == 3 and "pytorch_model.bin" in result.text, f"only PyTorch weights: {result.text[:200]}")
    place.hub.add("org/noise", {"m-Q4_0.gguf": noise(2 * MB)})
    result = place.get("org/noise")
    check(result.returncode == 1 and "org/noise/m-Q4_0.gguf" in result.text and "kvasir-plan" not in result.text, f"a GGUF file that is none, by its name in the repository: {result.text[:200]}")
    for i, broken in enumerate(({k: v for k, v in config.items() if k != "model_type"}, dict(config, model_type=None), dict(config, model_type=3))):
        place.hub.add(f"org/untyped{i}", dict(model, **{"config.json": json.dumps(broken).encode()}))
        result = place.get(f"org/untyped{i}")
        check(result.returncode == 3 and "model type" in result.text and "smollm3" in result.text, f"no model_type: the list of families {result.text[:200]}")
    check(place.get("org/untyped0", "--force").returncode == 0 and b"model type (missing) is not supported" in place.run("ls", "org/untyped0").stdout, "... and ls says so of one that was forced")
    # Without a tokenizer, or with one of another kind only.
    bare = {k: v for k, v in model.items() if k != "tokenizer.json"}
    for name, more, says in (("org/mute", {}, "has no tokenizer.json"), ("org/spm", {"tokenizer.model": noise(99)}, "tokenizer.model is of another kind"),
                             ("org/tik", {"qwen.tiktoken": noise(99)}, "qwen.tiktoken is of another kind")):
        place.hub.add(name, dict(bare, **more))
        result = place.get(name)
        check(result.returncode == 3 and says in result.text and "--force" in result.text, f"no tokenizer.json: {result.text[:200]}")
        check(weights not in place.blobs(name) and not place.incomplete(name), "... and no weights come")
    check(place.get("org/spm", "--force").returncode == 0, "... but with --force")
    row = json.loads(place.run("ls", "org/spm", "--json").stdout)[0]
    check(row["supported"] is False and "has no tokenizer.json" in row["problem"], f"ls says so, too: {row}")
    notes = [json.loads(place.run(verb, "org/spm", "--json").stdout)["notes"] for verb in ("inspect", "fit")]
    check(all(any("tokenizer.model is of another kind" in n for n in given) for given in notes), f"inspect and fit, too: {notes}")
    # A vocabulary that is broken, or none in a GGUF file.
    subprocess.run([KVASIR, "synth", os.path.join(folder, "deaf.gguf"), "--format", "gguf-q8_0", "--set", "hidden_size=256", "--set", "intermediate_size=2048"], capture_output=True, check=True)
    with open(os.path.join(folder, "deaf.gguf"), "rb") as file:
        deaf = file.read()
    torn = synth("gguf-q8_0", folder).replace(b"tokenizer.ggml.token_type", b"tokenizer.ggml.token_typo").replace(b"tokenizer.ggml.scores", b"tokenizer.ggml.scared")
    for name, files, code, says in (("org/broken", dict(model, **{"tokenizer.json": TOKENIZER[:200]}), 1, "org/broken/tokenizer.json"), ("org/odd", dict(model, **{"tokenizer.json": b"{}"}), 1, "tokenizer.json"),
                                    ("org/deaf", {"m-Q8_0.gguf": deaf}, 3, "has no vocabulary"), ("org/deaf2", {"m-Q8_0.gguf": deaf, "m-Q4_0.gguf": deaf + b"0"}, 3, "has no vocabulary"),
                                    ("org/torn", {"m-Q8_0.gguf": torn}, 1, "tokenizer.ggml.")):
        place.hub.add(name, files)
        result = place.get(name)
        check(result.returncode == code and says in result.text and "kvasir-plan" not in result.text, f"{name}: refused for its vocabulary: {result.text[:300]}")
        large = {hashlib.sha256(content).hexdigest() for path, content in files.items() if path.endswith((".gguf", ".safetensors"))}
        check(not large & set(place.blobs(name)) and not place.incomplete(name), "... and no weights come")
    check("--force" in place.get("org/deaf").text and place.get("org/deaf", "--force").returncode == 0, "... but with --force")
    row = json.loads(place.run("ls", "org/deaf", "--json").stdout)[0]
    check(row["supported"] is False and "has no vocabulary" in row["problem"], f"ls says so, too: {row}")
    # Shards by the index, in spite of another file that looks like weights.
    whole = model["model.safetensors"]
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8:8 + length])
    header.pop("__metadata__", None)
    names = sorted(header)
    shards, index = {}, {}
    for i, mine in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        part, content = {}, b""
        for name in mine:
            a, b = header[name]["data_offsets"]
            part[name] = dict(header[name], data_offsets=[len(content), len(content) + b - a])
            content += whole[8 + length + a:8 + length + b]
            index[name] = file
        text = json.dumps(part).encode()
        text += b" " * (-len(text) % 8)
        shards[file] = struct.pack("<Q", len(text)) + text + content
    repo = {"config.json": model["config.json"], "tokenizer.json": TOKENIZER, "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": index}).encode(),
            "consolidated.safetensors": noise(9000), "model-extra.safetensors": noise(9000), **shards}
    commit = place.hub.add("org/shards", repo)
    result = place.get("org/shards")
    there = set(os.listdir(place.snapshot("org/shards", commit)))
    check(result.returncode == 0 and there == set(repo) - {"consolidated.safetensors", "model-extra.safetensors"}, f"shards that the index names, no others: {result.text[:200]} {sorted(there)}")
    check(place.run("fit", "org/shards").returncode == 0, "... and they open")
    os.remove(os.path.join(place.snapshot("org/shards", commit), "model-00002-of-00002.safetensors"))
    before = len(place.hub.log)
    check(place.get("org/shards", "--if-missing").returncode == 0 and len(place.hub.log) > before, "--if-missing sees that a shard is missing")
    place.close()


def test_gc(folder):
    """What no ref names and no snapshot needs is planned, and removed with --yes."""
    place = Place(folder)
    old, new, lone, copy, extra = "1" * 40, "2" * 40, "3" * 40, "4" * 40, "5" * 40
    contents = {name: noise(size, seed) for seed, (name, size) in enumerate({"shared": 5000, "main": 7000, "alone": 9000, "orphan": 11000, "branch": 3000}.items())}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}

    def put(repo, path, content):
        path = os.path.join(place.repo(repo), path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def link(repo, commit, name, content):
        path = os.path.join(place.snapshot(repo, commit), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.path.relpath(os.path.join(place.repo(repo), "blobs", digests[content]), os.path.dirname(path)), path)

    def gc(*args):
        result = place.run("gc", "--json", *args)
        check(result.returncode == 0, f"gc {' '.join(args)}: {result.stderr}")
        out = json.loads(result.stdout)
        return out, {repo["repo"]: repo for repo in out["repos"]}

    def all_files():
        return sorted(os.path.join(at, name) for at, _, names in os.walk(place.cache) for name in names if not name.endswith(".lock"))

    check(b"nothing to remove" in place.run("gc").stdout, "an empty cache")
    for name, content in contents.items():
        put("org/a", "blobs/" + digests[name], content)
    put("org/a", "refs/main", new.encode())
    put("org/a", "refs/refs/pr/1", extra.encode())
    link("org/a", new, "m.gguf", "main")
    link("org/a", new, "sub/config.json", "shared")
    link("org/a", extra, "b.gguf", "branch")
    link("org/a", copy, "other name.json", "shared")  # of which main has all
    link("org/a", copy, "b.gguf", "branch")
    link("org/a", lone, "config.json", "shared")
    link("org/a", lone, "m.gguf", "alone")  # called as in main, and something else
    for half in (digests["orphan"] + ".incomplete", digests["orphan"] + ".incomplete-9", "0" * 64 + ".lock", "README"):
        put("org/a", "blobs/" + half, b"half")
    put("org/norefs", "blobs/" + digests["orphan"], contents["orphan"])
    link("org/norefs", old, "m.gguf", "orphan")
    put("org/strange", "blobs/" + digests["orphan"], contents["orphan"])
    put("org/strange", "refs/main", b"not a commit")
    before = all_files()
    out, repos = gc()
    a = repos["org/a"]
    check(out["removed"] is False and all_files() == before, "a plan alone")
    check(sorted(a["kept"]) == [new, extra] and [s["commit"] for s in a["pruned"]] == [copy] and a["skipped"] == [{"commit": lone, "unique_files": ["m.gguf"]}], f"the plan: {a}")
    check(a["blobs"] == 1 and a["freed_bytes"] == out["freed_bytes"] == 11000, f"one orphan: {a}")
    check("no ref" in repos["org/norefs"]["left_alone"] and "names no commit" in repos["org/strange"]["left_alone"], f"repositories that are left alone: {repos}")
    result = place.run("gc")
    text = result.stdout.decode()
    check("would free 0.0 MB" in text and "snapshot 333333333333 stays: m.gguf is nowhere else" in text and b"--yes does it" in result.stderr, f"in words: {text}")
    # A download that is running holds a lock.
    os.makedirs(os.path.join(place.cache, ".locks", "models--org--a"), exist_ok=True)
    with open(os.path.join(place.cache, ".locks", "models--org--a", digests["orphan"] + ".lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out, repos = gc("--yes")
        check(out["removed"] is False and "being fetched" in repos["org/a"]["left_alone"] and all_files() == before, "not while it is fetched")
    out, repos = gc("--yes")
    check(out["removed"] is True and out["freed_bytes"] == 11000, f"--yes: {out}")
    gone = {os.path.join(place.repo("org/a"), "blobs", digests["orphan"]), os.path.join(place.snapshot("org/a", copy), "other name.json"), os.path.join(place.snapshot("org/a", copy), "b.gguf")}
    check(set(before) - set(all_files()) == gone and not os.path.exists(place.snapshot("org/a", copy)), f"what is gone: {set(before) - set(all_files()) ^ gone}")
    check(gc("--yes")[0]["removed"] is False, "a second time there is nothing")
    out, repos = gc("--yes", "--force")
    check(out["freed_bytes"] == 9000 and not os.path.exists(place.snapshot("org/a", lone)) and digests["alone"] not in os.listdir(os.path.join(place.repo("org/a"), "blobs")), f"--force takes what has files of its own: {out}")
    check({"half" for _ in place.incomplete("org/a")} and os.path.exists(os.path.join(place.repo("org/a"), "blobs", "0" * 64 + ".lock")) and os.path.exists(os.path.join(place.repo("org/a"), "blobs", "README")), "unfinished downloads and locks stay")
    check(all(os.path.exists(os.path.join(place.snapshot("org/a", commit), name)) for commit, name in ((new, "m.gguf"), (new, "sub/config.json"), (extra, "b.gguf"))), "what refs name is whole")
    # A cache that is called by a way around is the same one.
    put("org/a", "blobs/" + digests["orphan"], contents["orphan"])
    around = os.path.join(place.cache, "..", os.path.basename(place.cache), "")
    result = subprocess.run([KVASIR, "gc", "--yes", "--json"], capture_output=True, env=dict(place.env, HF_HUB_CACHE=around))
    check(result.returncode == 0 and json.loads(result.stdout)["freed_bytes"] == 11000 and os.path.exists(os.path.join(place.snapshot("org/a", new), "m.gguf")), f"by a way around: {result.stderr}")
    # What cannot be told apart is left alone, whole: a link by way of another snapshot, a folder by a link, a folder among the blobs.
    for number, name in enumerate(("way", "folder", "inside")):
        repo = f"org/odd{number}"
        put(repo, "refs/main", new.encode())
        for content in ("main", "orphan"):
            put(repo, "blobs/" + digests[content], contents[content])
        link(repo, old, "m.gguf", "main")
        os.makedirs(place.snapshot(repo, new), exist_ok=True)
        if name == "way":
            os.symlink(f"../{old}/m.gguf", os.path.join(place.snapshot(repo, new), "m.gguf"))
        elif name == "folder":
            os.symlink(f"../{old}", os.path.join(place.snapshot(repo, new), "sub"))
        else:
            link(repo, new, "m.gguf", "main")
            os.makedirs(os.path.join(place.repo(repo), "blobs", "9" * 64))
    # Content that another repository leads to, by a link to a file or to the whole folder.
    for owner, user, whole in (("org/lender", "org/borrower", False), ("org/lender2", "org/borrower2", True)):
        put(owner, "refs/main", new.encode())
        put(user, "refs/main", new.encode())
        put(owner, "blobs/" + digests["orphan"], contents["orphan"])
        link(owner, new, "other.gguf", "orphan") if whole else os.makedirs(place.snapshot(owner, new))
        os.makedirs(place.snapshot(user, new))
        if whole:
            os.symlink(os.path.join(place.repo(owner), "blobs"), os.path.join(place.repo(user), "blobs"))
        else:
            os.symlink(os.path.join(place.repo(owner), "blobs", digests["orphan"]), os.path.join(place.snapshot(user, new), "m.gguf"))
    before = all_files()
    out, repos = gc("--yes", "--force")
    check(all_files() == before and out["freed_bytes"] == 0, f"nothing that may be in use goes: {set(before) - set(all_files())}")
    check(all("not of the cache's making" in repos[f"org/odd{number}"]["left_alone"] for number in range(3)), f"... and it is said why: {repos}")
    check(all("leads into it" in repos[owner]["left_alone"] for owner in ("org/lender", "org/lender2")), f"content in use elsewhere: {repos}")
    place.close()


def test_removal_in_doubt(folder):
    """rm and gc leave content alone that something else may use: by a link to a folder or through another snapshot, or in folders that cannot be read."""
    new, old = "1" * 40, "2" * 40
    digests = ["4" * 64, "8" * 64]

    def fresh():
        place = Place(folder)
        for path in (folder, place.folder):
            os.chmod(path, 0o755)
        for digest, form in zip(digests, ("gguf-q4_0", "gguf-q8_0")):
            put(place, "org/a", "blobs/" + digest, synth(form, folder))
        put(place, "org/a", "refs/main", new.encode())
        link(place, "org/a", f"snapshots/{new}/x-Q8_0.gguf", "../../blobs/" + digests[1])
        return place

    def put(place, repo, path, content):
        path = os.path.join(place.repo(repo), path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(content)

    def link(place, repo, path, target):
        path = os.path.join(place.repo(repo), path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)

    def all_of(place):
        return sorted(os.path.join(base, name) for base, folders, names in os.walk(place.cache) for name in folders + names if ".locks" not in base)

    def somebody():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    def closed(place, path, *args):
        """Runs as somebody to whom all belongs and whom the folder `path` does not let in."""
        program = shutil.copy(KVASIR, os.path.join(place.folder, "kvasir"))
        if os.getuid() == 0:
            for base, folders, names in os.walk(place.cache):
                for name in [base] + [os.path.join(base, name) for name in names]:
                    os.lchown(name, 65534, 65534)
        os.chmod(path, 0)
        result = subprocess.run([program, *args], capture_output=True, env=dict(place.env, TMPDIR="/tmp"), preexec_fn=somebody, cwd="/", timeout=120)
        os.chmod(path, 0o755)
        return result

    def refused(place, result, before, why, what):
        text = (result.stdout + result.stderr).decode()
        check(all_of(place) == before, f"{what}: all stays: {set(before) - set(all_of(place))}")
        check(why in text, f"{what}: it is said why: {result.returncode} {text}")

    # The blobs of one repository are another's.
    place = fresh()
    put(place, "org/b", "refs/main", new.encode())
    for digest, name in zip(digests, ("x-Q4_0.gguf", "x-Q8_0.gguf")):
        link(place, "org/b", f"snapshots/{new}/{name}", "../../blobs/" + digest)
    link(place, "org/b", "blobs", "../models--org--a/blobs")
    before = all_of(place)
    result = place.run("rm", "org/b:Q4_0", "--yes")
    check(result.returncode == 2, f"exit {result.returncode}")
    refused(place, result, before, "blobs is no folder of its own", "rm of one model of a repository with another's blobs")
    place.close()
    # A snapshot that stays has its file from one that goes.
    place = fresh()
    link(place, "org/a", f"snapshots/{old}/x-Q4_0.gguf", "../../blobs/" + digests[0])
    link(place, "org/a", f"snapshots/{new}/x-Q4_0.gguf", f"../{old}/x-Q4_0.gguf")
    before = all_of(place)
    refused(place, place.run("rm", "org/a@" + old, "--yes"), before, "not of the cache's making", "rm of a revision that another leads to")
    result = place.run("rm", "org/a", "--yes")
    check(result.returncode == 0 and not os.path.exists(place.repo("org/a")), f"the whole repository goes: {result.stderr}")
    place.close()
    # A snapshot that stays, with a folder that cannot be read; then one that cannot be read at all.
    for path in ("sub", ""):
        place = fresh()
        link(place, "org/a", f"snapshots/{old}/x-Q4_0.gguf", "../../blobs/" + digests[0])
        link(place, "org/a", f"snapshots/{new}/sub/x-Q4_0.gguf", "../../../blobs/" + digests[0])
        before = all_of(place)
        shut = os.path.join(place.snapshot("org/a", new), path)
        for args in (["rm", "org/a@" + old, "--yes"], ["gc", "--yes", "--force"]):
            refused(place, closed(place, shut, *args), before, "cannot be read: Permission denied", f"{args[0]} beside what cannot be read")
        place.close()
    # Another repository that cannot be read.
    place = fresh()
    link(place, "org/b", f"snapshots/{new}/x-Q4_0.gguf", "../../../models--org--a/blobs/" + digests[0])
    before = all_of(place)
    for args in (["gc", "--yes"], ["rm", "org/a", "--yes"]):
        refused(place, closed(place, place.snapshot("org/b", new), *args), before, f"{new} cannot be read: Permission denied, and may lead into it", f"{args[0]} beside another repository that cannot be read")
    place.close()
    # Another repository, or anything beside it, has a snapshot of this one for its own, one of its blobs, or all of it.
    for user, path, target in (("org/b", f"snapshots/{new}", f"../../models--org--a/snapshots/{old}"), ("org/b", "blobs/" + digests[0], "../../models--org--a/blobs/" + digests[0]),
                               ("org/b", "x", "../models--org--c/x"), ("org/B", "", "models--org--a")):
        place = fresh()
        link(place, "org/a", f"snapshots/{old}/x-Q8_0.gguf", "../../blobs/" + digests[1])
        if target.endswith("c/x"):
            link(place, "org/c", "x", f"../models--org--a/snapshots/{old}/x-Q8_0.gguf")
        if path:
            link(place, user, path, target)
        else:
            os.symlink(target, place.repo(user))
        before = all_of(place)
        for args in (["gc", "--yes"], ["rm", "org/a", "--yes"]):
            refused(place, place.run(*args), before, " leads into it", f"{args[0]} of what {user}/{path} leads into")
        place.close()


def test_names_ls_rm(folder):
    """Other tools' folders; listing; removal."""
    place = Place(folder)
    home = place.folder
    q8, q4 = synth("gguf-q8_0", folder), synth("gguf-q4_0", folder)
    place.hub.add("org/name-GGUF", {"m-Q8_0.gguf": q8, "m-Q4_0.gguf": q4, "config.json": b"{}"})
    place.get("org/name-GGUF:Q8_0")
    place.get("org/name-GGUF:Q4_0")
    place.hub.add("org/model", synth("bf16", folder))
    place.get("org/model")
    os.makedirs(os.path.join(home, ".lmstudio/models/pub/thing-GGUF"))
    write(home, ".lmstudio/models/pub/thing-GGUF/thing-Q8_0.gguf", q8)
    os.makedirs(os.path.join(home, "models"))
    write(home, "models/mine.gguf", q4)
    write(home, "models/broken.gguf", b"GGUF" + bytes(100))
    blobs = os.path.join(home, ".ollama/models/blobs")
    os.makedirs(blobs)
    digest = hashlib.sha256(q4).hexdigest()
    write(blobs, "sha256-" + digest, q4)
    for manifest in ("registry.ollama.ai/library/llama9/1b", "registry.ollama.ai/library/llama9/latest", "registry.ollama.ai/someone/tuned/v2", "hf.co/org/other/Q4_0"):
        path = os.path.join(home, ".ollama/models/manifests", manifest)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest, "size": len(q4)},
                  {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3}]
        with open(path, "w") as file:
            json.dump({"schemaVersion": 2, "config": {}, "layers": layers}, file)
    path = os.path.join(home, ".ollama/models/manifests/registry.ollama.ai/library/gone/latest")
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as file:
        json.dump({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "1" * 64, "size": 5}]}, file)

    rows = {r["name"]: r for r in json.loads(place.run("ls", "--json").stdout)}
    wanted = {"org/name-GGUF:Q8_0": "huggingface", "org/name-GGUF:Q4_0": "huggingface", "org/model": "huggingface", "pub/thing-GGUF:Q8_0": "lmstudio", "mine": "kvasir", "broken": "kvasir",
              "llama9:1b": "ollama", "llama9:latest": "ollama", "someone/tuned:v2": "ollama", "hf.co/org/other:Q4_0": "ollama", "gone:latest": "ollama"}
    check({n: r["store"] for n, r in rows.items()} == wanted, f"ls finds them all: {sorted(set(rows) ^ set(wanted))}")
    check(all(rows[n]["supported"] == (n not in ("broken", "gone:latest")) for n in rows), f"... and says which can run: {[(n, r.get('problem')) for n, r in rows.items()]}")
    check(rows["mine"]["bytes"] == len(q4) and rows["org/model"]["format"] == "safetensors" and rows["llama9:1b"]["model_type"] == "qwen3", "... with size, format and family")
    table = place.run("ls").stdout.decode()
    check("NAME" in table and "org/name-GGUF:Q8_0" in table and "yes, qwen3" in table, "the table")
    check(b"mine" not in place.run("ls", "llama9").stdout, "a filter")
    for name in ("org/name-GGUF:Q8_0", "org/name-GGUF:q4_0", "org/model", "model", "pub/thing-GGUF", "pub/thing-GGUF:Q8_0", "thing-gguf", "mine", "llama9", "llama9:1b", "someone/tuned:v2", "hf.co/org/other:Q4_0", "org/name-GGUF/m-Q4_0.gguf"):
        result = place.run("fit", name)
        check(result.returncode == 0, f"MODEL {name} opens {result.stderr.decode()[:200]}")
    result = place.run("fit", "gone")
    check(result.returncode == 1 and b"its blob is missing" in result.stderr, f"a damaged entry is a failure, not an unsupported model: {result.returncode}")
    result = place.run("fit", "org/name-GGUF")
    check(result.returncode == 2 and b"org/name-GGUF:Q4_0" in result.stderr, "a name of two models lists them")
    result = place.run("fit", "org/nome-GGUF")
    check(result.returncode == 1 and b"kvasir get org/nome-GGUF" in result.stderr, "an unknown one names the get command")

    # rm
    result = place.run("rm", "org/name-GGUF:Q8_0", "--json")
    check(result.returncode == 0 and b"nothing was removed: --yes" in result.stderr and json.loads(result.stdout)["removed"] is False and place.run("fit", "org/name-GGUF:Q8_0").returncode == 0, "rm without --yes plans only")
    check(place.run("rm", "org/name-GGUF:Q8_0", "--yes", "--dry-run").returncode == 2, "... and --dry-run does not go with --yes")
    result = place.run("rm", "org/name-GGUF:Q8_0", "--dry-run", "--json")
    check(json.loads(result.stdout)["freed_bytes"] == len(q8) and place.run("fit", "org/name-GGUF:Q8_0").returncode == 0, "--dry-run says what would be freed")
    result = place.run("rm", "org/name-GGUF:Q8_0", "--yes", "--json")
    check(result.returncode == 0 and json.loads(result.stdout)["freed_bytes"] == len(q8), f"rm of one quantization {result.stderr.decode()[:200]}")
    check(place.blobs("org/name-GGUF") == [digest] and place.run("fit", "org/name-GGUF").returncode == 0, "... leaves the other")
    for name in ("pub/thing-GGUF", "llama9:1b"):
        result = place.run("rm", name, "--yes")
        check(result.returncode == 2 and b"--force" in result.stderr, f"rm {name}: another tool's files are left alone")
    result = place.run("rm", "llama9:1b", "--yes", "--force")
    check(result.returncode == 0 and os.path.exists(os.path.join(blobs, "sha256-" + digest)) and place.run("fit", "llama9:latest").returncode == 0, "... a blob that another tag uses stays")
    result = place.run("rm", "pub/thing-GGUF", "--yes", "--force")
    check(result.returncode == 0 and not os.path.exists(os.path.join(home, ".lmstudio/models/pub/thing-GGUF")) and os.path.isdir(os.path.join(home, ".lmstudio/models")), "... and LM Studio's goes with --force, its folder too")
    check(place.run("rm", "mine", "--yes").returncode == 0 and os.listdir(os.path.join(home, "models")) == ["broken.gguf"], "rm in kvasir's own folder")
    check(place.run("rm", "nothing", "--yes").returncode == 1, "rm of nothing")

    # Names that act on a terminal, or turn its text around.
    for odd_name, shown in (("a\x1b[31m", "a\\x1b[31m"), ("b\u009b31m", "b\\u009b31m"), ("c\u202efdp", "c\\u202efdp"), ("d\u2066", "d\\u2066")):
        path = write(home, f"models/{odd_name}.gguf", b"GGUF" + bytes(100))
        table = place.run("ls").stdout.decode()
        check(shown in table and odd_name not in table, f"ls escapes {odd_name!r}")
        for result in (place.run("fit", path), place.run("fit", odd_name), place.run("inspect", path), place.run("fit", path + "x")):
            check(result.returncode != 0 and shown in result.stderr.decode() and odd_name not in result.stderr.decode(), f"... and messages do: {result.stderr[:120]}")
        planned = place.run("rm", odd_name).stdout.decode()
        check("would remove" in planned and shown in planned and odd_name not in planned, f"... and plans do: {planned}")
        result = place.run("rm", odd_name, "--yes")
        check(result.returncode == 0 and shown in result.stdout.decode() and odd_name not in result.stdout.decode(), "... and rm, which removes it")
    # A name that only looks like a part: the keys of the file decide, for ls as for fit.
    write(home, "models/one-00001-of-00002.gguf", q4)
    write(home, "models/two-00001-of-00002.gguf", gguf_parts(q4, 2)[0])
    rows = {r["name"]: r for r in json.loads(place.run("ls", "-00001", "--json").stdout) + json.loads(place.run("ls", "one", "--json").stdout) + json.loads(place.run("ls", "two", "--json").stdout)}
    names = {os.path.basename(r["path"])[:3]: r for r in rows.values()}
    check(names["one"]["supported"] is True and place.run("fit", os.path.join(home, "models/one-00001-of-00002.gguf")).returncode == 0, f"a whole file with the name of a part runs: {names['one']}")
    check(names["two"]["supported"] is False and "missing" in names["two"]["problem"] and place.run("fit", os.path.join(home, "models/two-00001-of-00002.gguf")).returncode == 1, f"a part without the others does not: {names['two']}")
    for name in ("one", "two"):
        os.remove(os.path.join(home, f"models/{name}-00001-of-00002.gguf"))

    # Names that are no UTF-8: JSON is JSON all the same, and comes after the deed.
    odd = os.path.join(home.encode(), b"models", b"caf\xe9.gguf")
    with open(odd, "wb") as file:
        file.write(q4)
    listed = place.run("ls", "caf", "--json")
    check(listed.returncode == 0 and json.loads(listed.stdout)[0]["bytes"] == len(q4), "ls --json of a name that is no UTF-8")
    for verb in (["fit"], ["inspect"]):
        result = subprocess.run([KVASIR.encode(), *[v.encode() for v in verb], odd, b"--json"], capture_output=True, env=place.env)
        check(result.returncode == 0 and isinstance(json.loads(result.stdout.decode()), dict), f"{verb[0]} --json of it: {result.stderr[:200]}")
    result = subprocess.run([KVASIR.encode(), b"rm", b"caf\xe9", b"--yes", b"--json"], capture_output=True, env=place.env)
    check(result.returncode == 0 and json.loads(result.stdout.decode() or "{}").get("removed") is True and not os.path.exists(odd), f"rm --json of it: {result.stderr[:200]}")

    # Two revisions that share files.
    old = place.hub.add("org/two", {"m-Q8_0.gguf": q8, "extra-Q4_0.gguf": q4})
    place.get("org/two:Q8_0")
    place.get("org/two:Q4_0")
    new = place.hub.add("org/two", {"m-Q8_0.gguf": q8, "extra-Q4_0.gguf": synth("gguf-q4_1", folder)}, revision="v2")
    place.get("org/two:Q8_0@v2")
    rows = {r["name"] for r in json.loads(place.run("ls", "two", "--all-revisions", "--json").stdout)}
    check(rows == {"org/two:Q8_0", "org/two:Q4_0", "org/two:Q8_0@v2"}, f"two revisions: {sorted(rows)}")
    result = place.run("rm", "org/two@main", "--yes", "--json")
    check(result.returncode == 0 and json.loads(result.stdout)["freed_bytes"] == len(q4), f"rm of a revision frees what only it used {result.stderr.decode()[:200]}")
    check(place.whole("org/two", new, "m-Q8_0.gguf", q8) and not os.path.exists(place.snapshot("org/two", old)), "... and leaves the other revision whole")
    check(not os.path.exists(os.path.join(place.repo("org/two"), "refs", "main")) and os.path.exists(os.path.join(place.repo("org/two"), "refs", "v2")), "... with its ref")
    result = place.run("rm", "org/two", "--yes")
    check(result.returncode == 0 and not os.path.exists(place.repo("org/two")), "rm of the repository leaves nothing")
    place.close()


def test_rm_everything(folder):
    """A repository goes whole: snapshots without weights, blobs that its revisions share."""
    place = Place(folder)
    q8 = synth("gguf-q8_0", folder)
    place.hub.add("org/two", {"m-Q8_0.gguf": q8, "a.txt": b"a"})
    place.hub.add("org/two", {"m-Q8_0.gguf": q8, "b.txt": b"b"}, revision="v2")
    place.hub.add("org/two", {"notes.txt": b"no weights"}, revision="v3")
    for name in ("org/two", "org/two@v2", "org/two/notes.txt@v3"):
        check(place.get(name).returncode == 0, f"{name} is fetched")
    result = place.run("rm", "org/two", "--yes", "--json")
    freed = json.loads(result.stdout) if result.returncode == 0 else {}
    check(freed.get("freed_bytes", 0) >= len(q8) and sorted(freed.get("models", [])) == ["org/two:Q8_0", "org/two:Q8_0@v2"], f"what two revisions share is counted once: {result.stdout} {result.stderr[:200]}")
    check(not os.path.exists(place.repo("org/two")) and place.blobs("org/two") == [], f"nothing of it is left: {place.blobs('org/two')}")
    place.close()


def test_read_only(folder):
    """A cache that may be read and not written (as root: by somebody else)."""
    place = Place(folder)
    commit = place.hub.add("org/name", {"m.gguf": synth("gguf-q8_0", folder)})
    place.hub.add("org/other", {"m.gguf": synth("gguf-q8_0", folder)})
    check(place.get("org/name").returncode == 0, "a model is fetched")
    program = shutil.copy(KVASIR, os.path.join(place.folder, "kvasir"))
    locked = []
    for base, folders, _ in os.walk(place.cache):
        locked.append(base)
    for path in (folder, place.folder):
        os.chmod(path, 0o755)
    for path in locked:
        os.chmod(path, 0o555)

    def somebody():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    def run(*args):
        env = dict(place.env, TMPDIR="/tmp")
        return subprocess.run([program, *map(str, args)], capture_output=True, env=env, preexec_fn=somebody, cwd="/", timeout=120)
    before = sorted(os.listdir(place.cache))
    for args in (["get", "org/other"], ["get", "org/other/m.gguf"], ["rm", "org/name", "--yes"]):
        result = run(*args)
        text = result.stderr.decode()
        check(result.returncode == 1 and text.startswith("kvasir: " + place.cache) and "Permission denied" in text.splitlines()[0], f"{' '.join(args)}: {result.returncode} {text[:300]}")
    check(sorted(os.listdir(place.cache)) == before and place.blobs("org/name") != [], "nothing is changed")
    for args in (["get", "org/name"], ["get", "org/name", "--offline"], ["ls"], ["fit", "org/name"], ["inspect", "org/name"]):
        result = run(*args)
        check(result.returncode == 0, f"{' '.join(args)} needs no right to write: {result.returncode} {result.stderr[:300]}")
    check(place.whole("org/name", commit, "m.gguf", synth("gguf-q8_0", folder)), "and it is what it was")
    for path in locked:
        os.chmod(path, 0o755)
    place.close()


def test_starters(folder):
    """Short names: every flag does what it says, or is refused."""
    place = Place(folder)
    models = os.path.join(place.folder, "models")
    for args in (["--connections", "2"], ["--retries", "1"], ["--context", "100"], ["--memory", "1G"], ["--force"], ["--quant", "Q4_0"], ["--revision", "main"]):
        result = place.run("get", "smollm2", "--offline", *args)
        check(result.returncode == 2 and args[0].encode() in result.stderr.splitlines()[0], f"get smollm2 {args[0]} is refused: {result.returncode} {result.stderr[:200]}")
    for how in (["--offline"], []):
        result = place.run("get", "smollm2", *how, env={} if how else {"HF_HUB_OFFLINE": "1"})
        check(result.returncode == 1 and result.stderr.startswith(b"kvasir: offline") and not os.path.exists(models), f"offline, nothing is fetched: {result.stderr[:200]}")
    result = place.run("get", "smollm2", "--dry-run", "--json")
    plan = json.loads(result.stdout or b"{}")
    check(result.returncode == 0 and plan.get("fetched") is False and plan.get("missing_bytes") == 98362432 and not os.path.exists(models), f"--dry-run says what would come, and fetches nothing: {result.stdout} {result.stderr[:200]}")
    check(b"98.4 MB" in place.run("get", "smollm2", "--dry-run").stdout, "... in words, too")
    result = place.run("get", "smollm2", "--dry-run", "--json", env={"KVASIR_CONNECTIONS": "2"})
    check(result.returncode == 0, f"a default for repositories does not stand in a starter's way: {result.stderr[:200]}")
    for args in (["--dry-run"], ["--offline"], ["--quant", "Q4_0"], ["--if-missing"]):
        result = place.run("get", *args)
        check(result.returncode == 2 and b"MODEL" in result.stderr.splitlines()[0], f"get {args[0]} of nothing is refused: {result.stdout[:100]} {result.stderr[:100]}")
    check(place.run("get", "org/name", "--list").returncode == 2 and place.run("get", "--list", "--json").returncode == 0, "--list lists, and does nothing else")
    path = write(place.folder, "m.gguf", b"x")
    result = place.run("get", path, "--if-missing", "--json")
    check(result.returncode == 0 and json.loads(result.stdout or b"null") == {"path": path, "fetched": False}, f"--if-missing --json of a path that is here: {result.stdout}")
    check(place.run("get", path, "--if-missing").stdout == b"", "... and silence for people")
    place.close()


def test_dry_run(folder):
    """What would come, as JSON and in words; nothing stays but what a hub's headers needed."""
    place = Place(folder)
    model = synth("bf16", folder)
    index = json.dumps({"metadata": {}, "weight_map": {"x": "model.safetensors"}}).encode()
    files = dict(model, **{"model.safetensors.index.json": index})
    place.hub.add("org/name", files)
    result = place.get("org/name", "--dry-run")
    wanted = sum(len(data) for name, data in files.items())
    check(result.returncode == 0 and result.json.get("fetched") is False, f"a dry run that reads the index has fetched nothing: {result.json.get('fetched')} {result.text[:200]}")
    check(result.json.get("missing_bytes") == wanted - len(index) and result.json.get("bytes") == wanted, f"... and says what is missing: {result.json.get('missing_bytes')} of {wanted}")
    check(place.get("org/name", "--force").json.get("missing_bytes") == 0 and place.get("org/name", "--dry-run").json.get("missing_bytes") == 0, "when all is here, nothing is missing")
    place.close()


def test_shared_blobs(folder):
    """Newer Python tools keep one copy for all repositories: blobs/<digest> is a link into <hub>/blobs."""
    place = Place(folder)
    model = synth("bf16", folder)
    place.hub.add("org/name", model)
    place.get("org/name")
    blob = os.path.join(place.repo("org/name"), "blobs", hashlib.sha256(model["model.safetensors"]).hexdigest())
    os.makedirs(os.path.join(place.cache, "blobs", "ab"))
    os.rename(blob, os.path.join(place.cache, "blobs", "ab", "abcd"))
    os.symlink("../../blobs/ab/abcd", blob)
    check(place.run("fit", "org/name").returncode == 0, "a model whose content is shared opens")
    check(place.get("org/name").json.get("fetched") is False, "... and is not fetched again")
    check(place.run("rm", "org/name", "--yes").returncode == 0 and os.path.exists(os.path.join(place.cache, "blobs", "ab", "abcd")), "rm leaves the shared content to the tool that made it")
    place.close()


def test_defaults(folder):
    """Command line, environment, configuration file, built in."""
    place = Place(folder)
    model = write(place.folder, "m.gguf", synth("gguf-q8_0", folder))
    config = write(place.folder, "config.toml", b"")
    env = {"KVASIR_CONFIG": config}

    def batch(*args, **more):
        result = place.run("fit", *args, "--json", env=dict(env, **more))
        return json.loads(result.stdout)["batch"] if result.returncode == 0 else result.stderr.decode()

    check(batch(model) == 1, "built in")
    write(place.folder, "config.toml", b"batch = 2\n")
    check(batch(model) == 2, "the configuration file")
    write(place.folder, "config.toml", f"batch = 2\n[fit]\nbatch = 3\nmodel = '{model}'\n".encode())
    check(batch() == 3, "the command's section, and MODEL")
    check(batch(KVASIR_BATCH="4") == 4, "the environment before the file")
    check(batch("--batch", "5", KVASIR_BATCH="4") == 5, "the command line before both")
    doctor = json.loads(place.run("doctor", "--quick", "--json", env=env).stdout)
    check(doctor["config_file"] == config and doctor["config"]["fit.batch"] == "3" and doctor["hub"]["endpoint"] == place.hub.url, "doctor shows the file, what it holds, and the hub")
    check(b"config.toml" in place.run("doctor", "--quick", env=env).stdout, "... in words, too")
    write(place.folder, "config.toml", b"[fit]\n\nbach = 3\n")
    result = place.run("fit", model, env=env)
    check(result.returncode == 2 and b"config.toml:3:" in result.stderr and b"did you mean batch" in result.stderr, f"an unknown key is refused with the nearest: {result.stderr.decode()[:200]}")
    check(any("bach" in p for p in json.loads(place.run("doctor", "--quick", "--json", env=env).stdout)["problems"]), "doctor says so, and runs")
    check(place.run("fit", "--help", env=env).returncode == 0, "--help runs")
    result = place.run("fit", model, env={"KVASIR_ACTIVATIONS": "f32"})
    check(result.returncode == 2 and b"KVASIR_ACTIVATIONS" in result.stderr, "numerics do not come from the environment")
    # Commands that ask no hub read no token and check no endpoint.
    write(place.folder, "token.bad", b"hf_\xff\n")
    for more in ({"HF_TOKEN": "tok\ten"}, {"HF_ENDPOINT": "ftp://x"}, {"HF_TOKEN_PATH": os.path.join(place.folder, "token.bad")}, {"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}):
        result = place.run("ls", "--quick", env=more)
        unknown = place.run("fit", "org/nothing", env=more)
        check(result.returncode == 0 and unknown.returncode == 1, f"ls and fit do not care about {list(more)[0]}: {result.stderr[:200]} {unknown.stderr[:200]}")
    write(place.folder, "config.toml", b"[fit]\nprompt-cache = '64M'\n[rm]\njson = true\n")
    env = {"KVASIR_CONFIG": config}
    check(place.run("fit", model, "--no-prompt-cache", env=env).returncode == 0, "a default gives way to a flag that excludes it")
    pipe = os.path.join(place.folder, "pipe.toml")
    os.mkfifo(pipe)
    for args in (["fit", model], ["ls"], ["get", "org/name"], ["version"]):
        result = place.run(*args, env={"KVASIR_CONFIG": pipe}, timeout=20)
        check(result.returncode == 2 and b"pipe.toml: is a named pipe" in result.stderr or args == ["version"], f"a configuration file that is a pipe is refused by {args[0]}, not waited for: {result.returncode} {result.stderr[:200]}")
    result = place.run("fit", pipe, timeout=20)
    check(result.returncode == 1, f"... as is a MODEL: {result.stderr[:200]}")
    xdg = os.path.join(place.folder, "xdg", "kvasir")
    os.makedirs(xdg)
    write(xdg, "config.toml", b"batch = 6\n")
    env = {"XDG_CONFIG_HOME": os.path.dirname(xdg)}
    check(batch(model) == 6, "XDG_CONFIG_HOME")
    place.close()


def main():
    chosen = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory(prefix="kvasir-hub-") as folder:
        tests = [(n, f) for n, f in globals().items() if n.startswith("test_") and chosen in n]
        for name, test in sorted(tests, key=lambda t: inspect.getsourcelines(t[1])[1]):
            print(f"== {name[5:]}", flush=True)
            begin = time.time()
            try:
                test(folder)
            except Exception as error:  # a test that cannot go on is a failure with a place
                import traceback
                traceback.print_exc()
                check(False, f"{name}: {error!r}")
            print(f"   {time.time() - begin:.1f} s", flush=True)
    print(f"{len(failures)} failures" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
