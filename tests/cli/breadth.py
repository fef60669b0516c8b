#!/usr/bin/env python3
"""The command line as outside scripts use it: its names, what is refused before weights are read, listings. Standard library only.

    breadth.py KVASIR SOURCE_FOLDER [SECTION...]
"""
import json
import math
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

from harness import ENV, KVASIR, Folder, check, expect_exit, finish, read, read_npy, run

WORDS = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
         "model": {"type": "WordLevel", "vocab": {"a": 0, **{f"w{i}": i for i in range(1, 128)}}, "unk_token": "a"}}


def called_as(link, *args):
    return subprocess.run([link, *args], capture_output=True, env=ENV, timeout=300)


def names(at):
    """kvasir.<verb> is kvasir <verb>."""
    def link(name):
        os.symlink(KVASIR, at(name))
        return at(name)

    check(called_as(link("kvasir.version"), "--json").stdout == run("version", "--json").stdout, "kvasir.version --json")
    check(called_as(link("kvasir.completion"), "fish").stdout == run("completions", "fish").stdout, "an alias: kvasir.completion")
    check(called_as(link("kvasir.help"), "eval", "ppl").stdout == run("eval", "ppl", "--help").stdout, "kvasir.help eval ppl")
    check(called_as(link("kvasir.eval"), "ppl", "--help").stdout == run("eval", "ppl", "--help").stdout, "a verb with verbs: kvasir.eval ppl --help")
    result = called_as(at("kvasir.version"), "--frob")
    check(result.returncode == 2 and b"unknown flag --frob" in result.stderr and b"Try: kvasir version --help" in result.stderr, f"a wrong flag of it: {result.stderr}")
    for name, says in (("kvasir.chta", b"unknown command 'chta': did you mean chat?"), ("kvasir.", b"unknown command ''"), ("kvasir.--help", b"unknown command '--help'")):
        result = called_as(link(name), "--help")
        first = result.stderr.split(b"\n")[0]
        check(result.returncode == 2 and first.startswith(b"kvasir: called as " + name.encode() + b": ") and says in first and not result.stdout, f"{name} is refused: {result.stderr}")
    check(called_as(link("kvasir-chta"), "--version").stdout == run("--version").stdout, "another name holds no verb")


def unreadable(at, name):
    """A model whose load fails as soon as its weights are read: one of a norm is no number."""
    model = at(name)
    run("synth", model, "--seed", 1)
    at(name + "/tokenizer.json", json.dumps(WORDS))
    at(name + "/chat_template.jinja", "{{ messages[-1].content }}")
    weights = bytearray(read(at(name + "/model.safetensors")))
    (length,) = struct.unpack("<Q", weights[:8])
    place = json.loads(weights[8:8 + length])["model.norm.weight"]["data_offsets"][0] + 8 + length
    weights[place:place + 4] = struct.pack("<f", math.nan)
    at(name + "/model.safetensors", bytes(weights))
    return model


def vocabulary(at):
    """Ids beyond the vocabulary are refused before weights are read."""
    model = unreadable(at, "nan")
    good, bad = at("good.json", "[1, 2, 127]"), at("bad.json", "[1, 2, 128]")
    line = {"prompt": "a", "raw": True, "max_tokens": 1}
    many, far = at("many.jsonl", json.dumps(line)), at("far.jsonl", json.dumps(line) + "\n" + json.dumps(dict(line, logit_bias={"128": 1})))
    prompt = ["--raw", "--prompt", "a w1", "--max-tokens", 1]
    outside = "outside the vocabulary of 128"
    for right, wrong, says in (
            (["generate", model, *prompt, "--logit-bias", "127=1"], ["generate", model, *prompt, "--logit-bias", "128=1"], "logit_bias: token id 128 is " + outside),
            (["generate", model, "--jsonl", many], ["generate", model, "--jsonl", far], "far.jsonl line 2: logit_bias: token id 128 is " + outside),
            (["chat", model, "--logit-bias", "127=1"], ["chat", model, "--logit-bias", "128=1"], "logit_bias: token id 128 is " + outside),
            (["eval", "logits", model, "--tokens", good, "--out", at("l.npy")], ["eval", "logits", model, "--tokens", bad, "--out", at("l.npy")], "bad.json: token 128 at position 2 is " + outside),
            (["eval", "logits", model, "--tokens", good, "--with", good, "--out", at("l.npy")], ["eval", "logits", model, "--tokens", good, "--with", bad, "--out", at("l.npy")],
             "bad.json: token 128 at position 2 is " + outside),
            (["eval", "ppl", model, "--window", 256, "--tokens", good], ["eval", "ppl", model, "--window", 256, "--tokens", bad], "bad.json: token 128 at position 2 is " + outside),
            (["eval", "kl", model, "--tokens", good, "--against-activations", "f32"], ["eval", "kl", model, "--tokens", bad, "--against-activations", "f32"], "bad.json: token 128"),
            (["eval", "kv-sensitivity", model, "--tokens", good], ["eval", "kv-sensitivity", model, "--tokens", bad], "bad.json: token 128 at position 2 is " + outside)):
        expect_exit(1, *right, contains="model.norm.weight", stdin=b"hello\n")
        expect_exit(2, *wrong, contains=says, stdin=b"hello\n")


def gguf(tensors=0, **keys):
    """A GGUF file of keys alone: strings, booleans and whole numbers."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def value(of):
        if isinstance(of, bool):
            return struct.pack("<I?", 7, of)
        return struct.pack("<II", 4, of) if isinstance(of, int) else struct.pack("<I", 8) + text(of)

    body = b"".join(text(key) + value(of) for key, of in keys.items())
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(keys)) + body + bytes(64)


def listing(at):
    """ls: models that take images, sizes, revisions."""
    home = at("home")
    os.makedirs(home)
    env = {"HOME": home, "HF_HUB_CACHE": at("hub"), "KVASIR_MODELS": at("models"), "OLLAMA_MODELS": at("ollama"), "HF_HOME": "", "XDG_DATA_HOME": ""}

    def rows(*args):
        result = run("ls", "--json", *args, env=env)
        check(result.returncode == 0, f"ls {' '.join(args)}: {result.stderr}")
        return {row["name"]: row for row in json.loads(result.stdout)}

    def put(path, content):
        os.makedirs(os.path.dirname(at(path)), exist_ok=True)
        return at(path, content)

    run("synth", at("models/plain"), "--seed", 1)
    run("synth", at("models/seeing"), "--seed", 1)
    config = json.loads(read(at("models/seeing/config.json")))
    put("models/seeing/config.json", json.dumps(dict(config, vision_config={"model_type": "siglip_vision_model"})))
    put("models/nulls/config.json", json.dumps(dict(config, vision_config=None)))
    put("models/nulls/model.safetensors", read(at("models/plain/model.safetensors")))
    # In one folder with others, a projector is of the model whose name it has.
    run("synth", at("models/alpha-Q8_0.gguf"), "--format", "gguf-q8_0")
    run("synth", at("models/beta-Q8_0.gguf"), "--format", "gguf-q8_0")
    put("models/mmproj-alpha-f16.gguf", gguf(**{"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.projector_type": "gemma3"}))
    # One with ears alone.
    put("models/ears/ears-Q8_0.gguf", read(at("models/beta-Q8_0.gguf")))
    put("models/ears/mmproj-f16.gguf", gguf(**{"general.architecture": "clip", "clip.has_audio_encoder": True, "clip.projector_type": "ultravox"}))
    # Named so, and something else.
    put("models/wrong/wrong-Q8_0.gguf", read(at("models/beta-Q8_0.gguf")))
    put("models/wrong/mmproj-f16.gguf", gguf(**{"general.architecture": "llama"}))
    listed = rows()
    seeing = {name for name, row in listed.items() if row["vision"]}
    check(seeing == {"seeing", "alpha-Q8_0"} and len(listed) == 7, f"models that take images: {sorted(seeing)} of {sorted(listed)}")
    check(listed["seeing"]["vision_config_type"] == "siglip_vision_model" and listed["alpha-Q8_0"]["vision_config_type"] == "gemma3", "... and what their vision part is")
    check("vision_config_type" not in listed["plain"] and listed["plain"]["vision"] is False, "... and of others that they take none")
    check(set(rows("--vision")) == seeing, "ls --vision")
    table = run("ls", "--vision", env=env).stdout.decode()
    check("alpha-Q8_0" in table and "beta-Q8_0" not in table, f"its table: {table}")
    check(all(row["vision"] is None for row in rows("--quick").values()), "--quick does not look")
    expect_exit(2, "ls", "--vision", "--quick", env=env, contains="--quick")
    # Sizes are those that --json prints; the limit is inclusive, with suffixes.
    sizes = {name: row["bytes"] for name, row in listed.items()}
    limit = sizes["beta-Q8_0"]
    for given in (str(limit), str(limit - 1), "10GB", "100K", "1Ki"):
        number = {"10GB": 10 ** 10, "100K": 100_000, "1Ki": 1024}.get(given) or int(given)
        wanted = {name for name, size in sizes.items() if size <= number}
        check(set(rows("--max-size", given)) == wanted, f"ls --max-size {given}: {sorted(wanted)}")
    for bad in ("10Q", "0", "-1G", "x"):
        expect_exit(2, "ls", f"--max-size={bad}", env=env, contains="--max-size")
    check(b"no model like that here" in run("ls", "--max-size", "1", env=env).stdout, "none that small")
    # Without a vocabulary nothing can be said with a model.
    check(listed["beta-Q8_0"]["supported"] is False and "has no vocabulary" in listed["beta-Q8_0"]["problem"], f"a GGUF file without a vocabulary does not run: {listed['beta-Q8_0']}")

    # Revisions: of a repository only one is listed, unless all are asked for.
    repo = "hub/models--org--name"
    old, new, other = "1" * 40, "2" * 40, "3" * 40
    for commit, age in ((old, 30), (new, 20), (other, 10)):
        path = put(f"{repo}/snapshots/{commit}/m-Q8_0.gguf", read(at("models/beta-Q8_0.gguf")))
        os.utime(os.path.dirname(path), (1_700_000_000 - age, 1_700_000_000 - age))
    put(f"{repo}/refs/main", old)
    put(f"{repo}/refs/v2", new)
    check(set(rows("org/name")) == {"org/name:Q8_0"} and rows("org/name")["org/name:Q8_0"]["commit"] == old, "main is what is listed of a repository")
    every = rows("org/name", "--all-revisions")
    check({name: (row["commit"], row["canonical"]) for name, row in every.items()} ==
          {"org/name:Q8_0": (old, True), "org/name:Q8_0@v2": (new, False), f"org/name:Q8_0@{other}": (other, False)}, f"--all-revisions: {sorted(every)}")
    result = run("ls", "org/name", env=env)
    check(b"2 more of other revisions: --all-revisions" in result.stderr and result.stdout.count(b"org/name") == 1, f"what is left out is said: {result.stderr}")
    check(not run("ls", "org/name", "--all-revisions", env=env).stderr, "... and with all of them there is nothing to say")
    os.remove(at(f"{repo}/refs/main"))
    check([row["commit"] for row in rows("org/name").values()] == [other], "without main it is the newest")


def busy(at):
    """bench: no numbers of a busy machine but with --force, and what the machine did beside them."""
    bench = ["bench", "smollm2", "-p", 16, "-n", 2, "--runs", 2]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() + 1)]
    try:
        result = expect_exit(1, *bench, contains="this machine is busy")
        message = result.stderr.decode()
        check(re.search(r"others take [0-9.]+ of \d+ processors", message) and "--force" in message and not result.stdout, f"it says by what: {message}")
        check(b"unknown model" not in result.stderr and run("bench", "smollm2", "--json").stdout == b"", "nor with --json")
        out = json.loads(run(*bench, "--force", "--json").stdout)
        machine = out["machine"]
        check(out["decode_tokens_per_s"] > 0 and machine["forced"] is True and machine["busy"] is True and any("others take" in reason for reason in machine["busy_before"]), f"--force measures, and says so: {machine}")
        # In turns with one loop more than there are processors: at least one of them was never ours.
        check(machine["before"]["other_cpus"] > 0.2 and machine["during"]["other_cpus"] > 0.2 and machine["during"]["runs"] == 6 and 1 <= machine["during"]["busy_runs"] <= 6, f"others' processors are counted: {machine}")
        check(machine["processors"] == os.cpu_count() and machine["after"]["load_average"] > 0 and set(machine["before"]) >= {"swapped_pages", "memory_stall", "throttled_periods", "thermal_throttles"}, f"the state: {machine}")
        text = run(*bench, "--force").stdout.decode()
        check(re.search(r"^  BUSY     before: .*others take", text, re.MULTILINE) and re.search(r"^  BUSY     in \d of 6 runs: ", text, re.MULTILINE) and "  machine  " in text, f"and so does the text: {text}")
        expect_exit(2, "bench", "smollm2", "--frobnicate", contains="--frobnicate")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def matrix(at):
    """fit --matrix: each cell is what fit with its flags says."""
    def table(*args, code=0):
        result = run("fit", "smollm2", "--matrix", "--json", *args)
        check(result.returncode == code, f"fit --matrix {' '.join(map(str, args))}: {result.returncode} {result.stderr}")
        return json.loads(result.stdout)

    usual = table("--threads", 2)
    check(usual["contexts"] == [1024, 2048, 4096, 8192] and usual["model_context"] == 8192 and usual["batches"] == [1, 4, 16] and len(usual["kv"]) >= 3, f"usual axes: {usual['contexts']} {usual['kv']}")
    check(len(usual["cells"]) == 4 * 3 * len(usual["kv"]) and all(cell["fits"] for cell in usual["cells"]), "a cell of each")
    given = table("--matrix-context", 300, "--matrix-context", 5000, "--matrix-kv", "q8_0", "--matrix-kv", "affine:4/q8_0", "--matrix-batch", 3, "--matrix-batch", 1, "--threads", 2, "--memory", "250M", "--prompt-cache", "10M")
    check((given["contexts"], given["kv"], given["batches"]) == ([300, 5000], ["q8_0", "affine:4/q8_0"], [3, 1]), f"given axes: {given}")
    for cell in given["cells"]:
        alone = run("fit", "smollm2", "--json", "--context", cell["context"], "--kv", cell["kv"], "--batch", cell["batch"], "--threads", 2, "--memory", "250M", "--prompt-cache", "10M")
        one = json.loads(alone.stdout)
        same = all(cell[key] == one[key] for key in ("fits", "total_bytes", "weights_bytes", "kv_bytes", "workspace_bytes", "process_bytes", "prefix_bytes"))
        check(same and (alone.returncode == 0) == cell["fits"], f"{cell['context']} {cell['kv']} {cell['batch']} is as fit alone: {cell} {one['total_bytes']}")
    check({cell["fits"] for cell in given["cells"]} == {True, False}, "some fit and some do not")
    one = table("--context", 512, "--batch", 2, "--kv", "bf16")
    check((one["contexts"], one["kv"], one["batches"], len(one["cells"])) == ([512], ["bf16"], [2], 1), f"--context, --kv and --batch are axes of one: {one}")
    table("--memory", "50M", code=4)
    text = run("fit", "smollm2", "--matrix", "--memory", "400M", "--threads", 2)
    check(text.returncode == 0 and b"in [brackets] what does not fit in 400.0 MB" in text.stdout and text.stdout.count(b"[") > 3, f"in words: {text.stdout.decode()}")
    # A codec that the model cannot take leaves its cells empty; when all are so, that is the answer.
    run("synth", at("odd"), "--set", "head_dim=24", "--seed", 1)
    result = run("fit", at("odd"), "--matrix", "--matrix-kv", "bf16", "--matrix-kv", "rot:4", "--matrix-batch", 1, "--json")
    cells = json.loads(result.stdout)["cells"]
    check(result.returncode == 0 and [("problem" in cell) for cell in cells] == [False, True] * (len(cells) // 2) and "rot:4" in cells[1]["problem"], f"a codec that does not serve: {cells[:2]}")
    check(json.loads(result.stdout)["contexts"] == [64, 128, 256], "a small limit has powers of two below it")
    expect_exit(run("fit", at("odd"), "--kv", "rot:4").returncode, "fit", at("odd"), "--matrix", "--matrix-kv", "rot:4", contains="rot:4")
    for args in (["--matrix-context", "0"], ["--matrix-context", "x"], ["--matrix-batch", "-1"], ["--matrix-kv", "q8_0", "--kv", "bf16"]):
        expect_exit(2, "fit", "smollm2", "--matrix", *args, contains="--matrix-")
    expect_exit(2, "fit", "smollm2", "--matrix-kv", "q8_0", contains="--matrix")
    # What --state-snapshot-interval means, or that it means nothing.
    def points(*args):
        return json.loads(run("fit", "gemma3-270m", "--json", "--context", 4096, *args).stdout)
    kept = points("--prompt-cache", "64M", "--state-snapshot-interval", 512)
    # A window of 512 in pages of 64 lies in at most nine; pages of 15 layers, a head of 256, keys and values in two bytes.
    check(kept["resume_points"] == {"interval": 512, "in_context": 7, "most_bytes_each": 9 * 64 * 15 * 256 * 2 * 2}, f"points of a prompt: {kept.get('resume_points')}")
    check(points("--chat", "--state-snapshot-interval", 0)["resume_points"]["in_context"] == 0, "0: none between")
    for model, args, says in (("gemma3-270m", [], "no prompt is kept here"), ("smollm2", ["--prompt-cache", "64M"], "resumes at any token")):
        notes = json.loads(run("fit", model, "--json", *args, "--state-snapshot-interval", 512).stdout)
        check(any(says in note for note in notes["notes"]) and "resume_points" not in notes, f"{model}: --state-snapshot-interval does nothing, and that is said: {notes['notes']}")
    # What fit alone plans, a cell says, too; what is no codec is no column.
    alone = json.loads(run("fit", "smollm2", "--kv", "q8_0", "--kv-start", 512, "--context", 1024, "--json").stdout)
    for kv in (("--kv", "q8_0"), ("--matrix-kv", "q8_0")):
        cell = json.loads(run("fit", "smollm2", "--matrix", *kv, "--kv-start", 512, "--context", 1024, "--batch", 1, "--json").stdout)["cells"]
        check(len(cell) == 1 and cell[0]["total_bytes"] == alone["total_bytes"], f"--kv-start in a cell: {cell} {alone['total_bytes']}")
    cells = json.loads(run("fit", "smollm2", "--matrix", "--kv-start", 512, "--context", 1024, "--batch", 1, "--json").stdout)
    check(all(cells["kv"]) and all("total_bytes" in cell for cell in cells["cells"]), f"the plain column beside --kv-start: {cells['kv']}")
    for spec in ("nonsense", "Q8_0", ""):
        expect_exit(2, "fit", "smollm2", "--matrix", "--matrix-kv", spec, "--matrix-kv", "q8_0", contains=spec or "codec")
    expect_exit(2, "generate", "smollm2", "--raw", "--continue", "", "--prompt", "x", contains="a name")
    expect_exit(2, "ls", "--max-size", "", contains="--max-size")


def perplexities(at):
    """perplexity: rows as mlx-lm takes them, losses from logits that eval logits writes, whatever the batch."""
    sentences = [f"The {i}th house by the river has {i * 7 % 13} windows and a green door." for i in range(40)]
    prose = at("prose.txt", " ".join(sentences))
    eos = [2]  # <|im_end|>: mlx-lm ends every sample with it
    ids = json.loads(run("tokenize", "smollm2", "--file", prose, "--json").stdout)["ids"] + eos
    length, least = 48, 3

    def report(*args, data=prose):
        result = run("perplexity", "smollm2", "--data-path", data, "--sequence-length", length, "--activations", "f32", "--json", *args)
        check(result.returncode == 0, f"perplexity {' '.join(map(str, args))}: {result.stderr}")
        return json.loads(result.stdout)

    def by_hand(ids, rows):
        losses = []
        for row in range(rows):
            part = ids[row * length:(row + 1) * length]
            run("eval", "logits", "smollm2", "--tokens", at("row.json", json.dumps(part)), "--out", at("row.npy"), "--activations", "f32", "--context", length)
            shape, logits = read_npy(at("row.npy"))
            for i in range(length - 1):
                line = logits[i * shape[1]:(i + 1) * shape[1]]
                most = max(line)
                losses.append(most + math.log(math.fsum(math.exp(x - most) for x in line)) - line[part[i + 1]])
        mean = math.fsum(losses) / len(losses)
        return math.exp(mean), math.exp(mean) * statistics.stdev(losses) / math.sqrt(len(losses)), len(losses)

    def near(out, wanted):
        return abs(out["perplexity"] / wanted[0] - 1) < 1e-5 and abs(out["standard_error"] / wanted[1] - 1) < 1e-4 and out["tokens"] == wanted[2]

    whole = report()
    check(whole["rows"] == len(ids) // length >= 5, f"whole rows, the rest dropped: {whole['rows']} of {len(ids)}")
    few, wanted = report("--num-samples", least), by_hand(ids, least)
    check(near(few, wanted) and few["rows"] == least, f"by hand: {few} {wanted}")
    check(abs(few["bits_per_token"] - few["mean_nll"] / math.log(2)) < 1e-12, "bits a token")
    same = [report("--batch-size", batch, "--chunk", chunk) for batch, chunk in ((1, 512), (3, 7), (5, 64))]
    keys = ("perplexity", "standard_error", "mean_nll", "tokens", "rows")
    check(all({key: out[key] for key in keys} == {key: whole[key] for key in keys} for out in same), f"the batch changes no bit: {[out['perplexity'] for out in same]} {whole['perplexity']}")
    # Samples of a .jsonl come in numpy's order: RandomState(123).permutation(10) is 4 0 7 5 8 3 1 6 9 2, RandomState(0)'s of 10 is 2 8 4 9 1 6 7 3 0 5.
    lines = at("ten.jsonl", "\n".join(json.dumps({"text": " ".join(sentences[4 * i:4 * i + 4])}) for i in range(10)))
    for seed, order in ((123, (4, 0, 7, 5)), (0, (2, 8, 4, 9))):
        ids = []
        for sample in order:
            ids += json.loads(run("tokenize", "smollm2", "--file", at("one.txt", " ".join(sentences[4 * sample:4 * sample + 4])), "--json").stdout)["ids"] + eos
        out, wanted = report("--num-samples", least, "--seed", seed, data=lines), by_hand(ids, least)
        check(near(out, wanted), f"samples in order, seed {seed}: {out} {wanted}")
    check(b"--seed does nothing" in run("perplexity", "smollm2", "--data-path", prose, "--sequence-length", length, "--num-samples", 1, "--seed", 3).stderr, "--seed of one sample is told")
    text = run("perplexity", "smollm2", "--data-path", prose, "--sequence-length", length, "--num-samples", 2).stdout.decode()
    check(re.match(r"perplexity \d+\.\d{4} \+- \d+\.\d{4} over 94 tokens in 2 rows of 48 ", text), f"in words: {text}")
    expect_exit(2, "perplexity", "smollm2", "--data-path", at("short.txt", "a b c"), contains="short.txt: not enough tokens: need 512, got 4")
    expect_exit(2, "perplexity", "smollm2", "--data-path", at("bad.jsonl", '{"text": "a"}\n{'), contains="bad.jsonl:2: not valid JSON")
    expect_exit(2, "perplexity", "smollm2", "--data-path", prose, "--num-samples", 0, contains="--num-samples")
    expect_exit(2, "perplexity", "smollm2", "--data-path", prose, "--sequence-length", 512, "--context", 100, contains="--sequence-length 512")
    expect_exit(2, "perplexity", "smollm2", contains="--data-path")


sections = {"perplexity": perplexities, "matrix": matrix, "busy": busy, "names": names, "vocabulary": vocabulary, "listing": listing}
for name in sys.argv[3:] or sections:
    with tempfile.TemporaryDirectory() as scratch:
        sections[name](Folder(scratch))
finish()
