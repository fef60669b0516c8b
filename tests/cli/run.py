#!/usr/bin/env python3
"""The command line as outside scripts use it: interfaces, exit codes, bits, memory, bad input. Standard library only.

    run.py KVASIR SOURCE_FOLDER
"""
import json
import math
import os
import resource
import struct
import tempfile

from harness import ENV, GEMMA, KVASIR, SMOL, SOURCE, Folder, check, expect_exit, finish, read, read_npy, run


def little_memory():
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def main(folder):
    write = path = Folder(folder)

    # Wrong usage: exit 2, with the nearest name.
    expect_exit(2, "generate", "smollm2", "--promt", "x", contains="--prompt")
    expect_exit(2, "genrate", contains="generate")
    expect_exit(2, "generate", "smollm2", "--prompt", "x", "--activations", "fp8", contains="int8")
    expect_exit(2, "generate", "smollm2", "--prompt", "x", "--temperature", "-2", contains="temperature")
    expect_exit(2, "generate", "smollm2", "--prompt", "x", "--isa", "sse9", contains="generic")
    expect_exit(2, "fit", "smollm2", "--memory", "12Q", contains="--memory")
    # Missing and unsupported.
    expect_exit(1, "generate", "/no/such/model.gguf", "--prompt", "x", contains="/no/such/model.gguf")
    folder_model = path("model")
    os.makedirs(folder_model)
    with open(os.path.join(folder_model, "config.json"), "w") as file:
        json.dump({"model_type": "frobnicator", "hidden_size": 8}, file)
    expect_exit(3, "fit", folder_model, contains="frobnicator")
    # Damaged files.
    with open(SMOL, "rb") as file:
        head = file.read(4_000_000)
    expect_exit(1, "fit", write("truncated.gguf", head))
    expect_exit(1, "generate", path("truncated.gguf"), "--prompt", "x")
    expect_exit(3, "fit", write("newer.gguf", b"GGUF" + struct.pack("<I", 77) + bytes(100)), contains="version 77")
    expect_exit(1, "fit", write("noise.gguf", b"GGUF" + struct.pack("<I", 3) + b"\xff" * 4096))
    expect_exit(1, "fit", write("empty.gguf", b""))
    # Does not fit.
    check(run("fit", "smollm2", "--memory", "100M").returncode == 4, "fit exits 4 for what does not fit")
    expect_exit(4, "generate", "smollm2", "--prompt", "x", "--memory", "100M", contains="does not fit")
    # Prompt longer than the context.
    expect_exit(2, "generate", "smollm2", "--raw", "--context", "16", "--prompt", "a b c d e f g h i j k l m n o p q r s t u v", contains="--context")
    # A chat with a model that has no template.
    expect_exit(3, "chat", "gemma3-270m", stdin=b"hello\n", contains="template")
    expect_exit(3, "generate", "gemma3-270m", "--prompt", "Hi", "--system", "Be brief.", contains="template")
    expect_exit(3, "generate", "gemma3-270m", "--jsonl", write("one.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}'), contains="template")
    told, asked = (run("generate", "gemma3-270m", *raw, "--prompt", "Hi", "--max-tokens", 2, "--temperature", 0) for raw in ([], ["--raw"]))
    check(told.stdout == asked.stdout and b"no chat template" in told.stderr and not asked.stderr, "without a template a prompt is completed as it is, and that is said")

    # tokenize, detokenize, render.
    text = "Hello, wörld! 123\n  <|im_end|> 日本語"
    result = run("tokenize", "smollm2", "--file", write("t.txt", text), "--no-special", "--json")
    tokens = json.loads(result.stdout)
    check(len(tokens["ids"]) == len(tokens["pieces"]) and 2 in tokens["ids"], "tokenize parses special tokens in the text")
    plain = json.loads(run("tokenize", "smollm2", "--file", path("t.txt"), "--no-special", "--no-parse-special", "--json").stdout)
    check(2 not in plain["ids"], "--no-parse-special leaves them as text")
    back = json.loads(run("detokenize", "smollm2", "--ids", write("ids.json", json.dumps(plain["ids"])), "--json").stdout)
    check(back["text"] == text, "detokenize gives the text back")
    messages = write("m.json", json.dumps([{"role": "user", "content": "Hi"}]))
    rendered = run("render", "smollm2", "--messages", messages).stdout.decode()
    check(rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "render ends with the open assistant turn")

    # eval logits: bits, and the committed goldens of transformers in float32.
    for model, name in ((SMOL, "smollm2"), (GEMMA, "gemma3")):
        data = os.path.join(SOURCE, "tests", "data", "real")
        with open(os.path.join(data, name + ".tokens.json")) as file:
            ids = json.load(file)
        with open(os.path.join(data, name + ".golden.json")) as file:
            golden = json.load(file)
        count = 600 if name == "gemma3" else 400  # past Gemma's window of 512
        short = write(name + ".json", json.dumps(ids[:count]))
        result = run("eval", "logits", model, "--tokens", short, "--out", path(name + ".npy"), "--activations", "f32")
        check(result.returncode == 0, f"{name}: eval logits runs {result.stderr.decode()[:200]}")
        shape, logits = read_npy(path(name + ".npy"))
        check(shape[0] == count, f"{name}: shape {shape}")
        vocab = shape[1]
        worst = 0.0
        for position, top, log_probs in zip(golden["positions"], golden["ids"], golden["log_probs"]):
            if position >= count:
                break
            row = logits[position * vocab:(position + 1) * vocab]
            largest = max(row)
            norm = largest + math.log(math.fsum(math.exp(x - largest) for x in row))
            worst = max(worst, max(abs(row[i] - norm - want) for i, want in zip(top, log_probs)))
        check(worst < 2e-3, f"{name}: log-probabilities of the 16 likeliest ids match transformers in float32 (worst {worst:.2e})")
        # The row is stored at a token behind Gemma's first window and taken up again by another process.
        store = path(name + ".store")
        result = run("eval", "logits", model, "--tokens", short, "--out", path("saved.npy"), "--activations", "f32", "--save-at", count - 60, store)
        check(result.returncode == 0 and read_npy(path("saved.npy"))[1] == logits, f"{name}: --save-at changes nothing")
        os.remove(path("saved.npy"))
        result = run("eval", "logits", model, "--tokens", short, "--out", path("tail.npy"), "--activations", "f32", "--resume", store, "--kv-page", "16")
        shape, tail = read_npy(path("tail.npy")) if result.returncode == 0 else ((0, 0), None)
        check(shape[0] == 60 and tail == logits[(count - 60) * vocab:], f"{name}: --resume in a new process writes the same bits {result.stderr.decode()[:200]}")
        check(run("kv", "verify", store).returncode == 0, f"{name}: the store verifies")
        expect_exit(1, "eval", "logits", model, "--tokens", short, "--out", path("x.npy"), "--activations", "bf16", "--resume", store, contains="activations is f32 there and bf16 here")
        expect_exit(1, "eval", "logits", model, "--tokens", short, "--out", path("x.npy"), "--activations", "f32", "--kv", "affine:4", "--resume", store, contains="affine")
        expect_exit(2, "eval", "logits", model, "--tokens", write("other.json", json.dumps(ids[1:count])), "--out", path("x.npy"), "--activations", "f32", "--context", count, "--resume", store, contains="token 0")
        few = write(name + "few.json", json.dumps(ids[:70]))
        # Rows beside it: joining, leaving, forked from it, cut back, rolled back.
        beside = ["--with", write("b1.json", json.dumps(ids[70:200])), "--with", write("b2.json", json.dumps(ids[:90]))]
        for mode, kv in (("int8", []), ("f32", ["--kv", "affine:4"]), ("bf16", ["--kv", "rot:3", "--kv-start", "33"]), ("int8", ["--kv", "turbo", "--kv-layer", "0-3=affine:8"])):
            alone = path(f"alone-{name}-{mode}-{len(kv)}.npy")  # of its own: what an earlier run wrote proves nothing
            result = run("eval", "logits", model, "--tokens", few, "--out", alone, "--activations", mode, *kv)
            check(result.returncode == 0, f"{name} {mode} {' '.join(kv)}: alone {result.stderr.decode()[:200]}")
            for seed in (1, 2):
                result = run("eval", "logits", model, "--tokens", few, "--out", path("beside.npy"), "--activations", mode, *kv, *beside, "--schedule", seed, "--kv-page", 16 * seed)
                same = result.returncode == 0 and open(alone, "rb").read() == open(path("beside.npy"), "rb").read()
                check(same, f"{name} {mode} {' '.join(kv)}: rows beside it change no bit, schedule {seed} {result.stderr.decode()[:200]}")
        for mode in ("f32", "bf16", "int8", "int16"):
            want = None
            for extra in (["--chunk", "512"], ["--chunk", "7"], ["--chunk", "16", "--threads", "1"], ["--chunk", "1"]):
                run("eval", "logits", model, "--tokens", few, "--out", path("bits.npy"), "--activations", mode, *extra)
                with open(path("bits.npy"), "rb") as file:
                    got = file.read()
                os.remove(path("bits.npy"))
                if want is None:
                    want = got
                elif got != want:
                    check(False, f"{name} {mode}: {extra} changed bits")
            check(want is not None, f"{name} {mode}: chunks of 512, 7, 16 and 1 and 1 or 2 threads give equal bits")
    expect_exit(2, "eval", "logits", SMOL, "--tokens", write("bad.json", "[1, 99999999]"), "--out", path("x.npy"), contains="99999999")
    check(not os.path.exists(path("x.npy")) and not [f for f in os.listdir(folder) if "partial" in f], "nothing half-written is left behind")

    # generate: JSON fields; the same seed, the same text; samples.
    base = ["generate", "smollm2", "--prompt", "Name three colours.", "--max-tokens", "24", "--seed", "11", "--json"]
    one = json.loads(run(*base).stdout)
    check(all(k in one for k in ("text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "timings")), "generate --json has its fields")
    check(json.loads(run(*base, "--threads", "1", "--chunk", "5").stdout)["token_ids"] == one["token_ids"], "same seed, same text for another chunk and thread count")
    samples = json.loads(run(*base, "--samples", "3").stdout)
    check(samples[0]["token_ids"] == one["token_ids"] and samples[1]["token_ids"] != one["token_ids"], "sample 0 of a batch is the single answer; others differ")
    stopped = json.loads(run("generate", "smollm2", "--raw", "--prompt", "1 2 3 4 5", "--stop", "9", "--temperature", "0", "--json").stdout)
    check("9" not in stopped["text"] and stopped["finish_reason"] == "stop", "stop strings end the text and are not part of it")
    paris = run("generate", "smollm2", "--prompt", "What is the capital of France?", "--temperature", "0", "--activations", "f32").stdout.decode()
    check(paris.strip() == "The capital of France is Paris.", f"the float32 answer is transformers' greedy one: {paris.strip()!r}")

    # chat over a pipe: the second turn re-uses the first.
    result = run("chat", "smollm2", "--json", "--temperature", "0", "--context", "512", "--max-tokens", "20", stdin=b"Hi!\nAnd you?\n")
    turns = [json.loads(line) for line in result.stdout.splitlines()]
    check(len(turns) == 2 and turns[1]["reused_tokens"] >= turns[0]["prompt_tokens"], "the second turn of a chat re-uses the first")
    full = run("chat", "smollm2", "--context", "64", "--max-tokens", "20", stdin=b"Tell me a story.\nGo on, please, at length.\nMore!\n")
    check(full.returncode == 2 and b"context" in full.stderr, "a full context is refused by default")
    rolled = run("chat", "smollm2", "--context", "96", "--max-tokens", "20", "--context-policy", "roll",
                 stdin=b"Tell me a story.\nGo on, please.\nMore!\nAnd then?\n")
    check(rolled.returncode == 0 and b"dropped" in rolled.stdout, "--context-policy roll drops old turns and says so")

    # A conversation kept on disk goes on in another process with the same answer, and nothing is processed again.
    store = path("store")
    together = run("chat", "smollm2", "--json", "--temperature", "0", "--context", "512", "--max-tokens", "20", "--prompt-cache-dir", store,
                   stdin=b"Hi!\n/save first\nAnd you?\n")
    later = run("chat", "smollm2", "--json", "--temperature", "0", "--context", "512", "--max-tokens", "20", "--prompt-cache-dir", store,
                "--continue", "first", stdin=b"And you?\n")
    want, got = json.loads(together.stdout.splitlines()[-1]), json.loads(later.stdout.splitlines()[-1])
    check(want == dict(got, prefill_seconds=want["prefill_seconds"], decode_tokens_per_s=want["decode_tokens_per_s"]),
          "a saved conversation goes on in a new process as if it had not stopped")
    check(run("kv", "verify", store).returncode == 0 and b"first" in run("kv", "ls", store).stdout, "kv ls and verify")
    entry = [os.path.join(d, f) for d, _, files in os.walk(store) for f in files if f.endswith(".kvk")][0]
    with open(entry, "r+b") as file:
        file.seek(-100, 2)
        file.write(b"\xa5" * 50)
    expect_exit(1, "kv", "verify", store, contains=" entries damaged")
    expect_exit(2, "fit", "smollm2", "--kv", "", contains="--kv: '' is not a codec")

    # A configuration that cannot be is the file's fault; what a flag says is the user's.
    run("synth", path("bad"))
    config = json.loads(read(path("bad/config.json")))
    for field, value in (("num_attention_heads", 0), ("hidden_size", "64"), ("rms_norm_eps", -1), ("rope_theta", 0), ("num_key_value_heads", 3), ("head_dim", 15)):
        write("bad/config.json", json.dumps(dict(config, **{field: value})))
        expect_exit(1, "eval", "logits", path("bad"), "--tokens", write("t.json", "[1, 2]"), "--out", path("x.npy"))
        expect_exit(2, "synth", path("never"), "--set", f"{field}={json.dumps(value)}")

    run("synth", path("keys.gguf"))
    expect_exit(1, "fit", write("keys.gguf", read(path("keys.gguf")).replace(b"llama.block_count", b"llama.block_xxxxx")), contains="llama.block_count")
    os.remove(path("keys.gguf"))

    # synth: names, what is there already, sizes.
    check(run("synth", path("new.gguf")).returncode == 0 and read(path("new.gguf"))[:4] == b"GGUF", "a name that ends in .gguf is a GGUF file")
    for there in ("new.gguf", "bad"):
        expect_exit(2, "synth", path(there), contains="--overwrite")
    check(run("synth", path("new.gguf"), "--overwrite", "--format", "gguf-q4_0").returncode == 0, "--overwrite replaces it")
    expect_exit(2, "synth", path("plain"), "--format", "gguf-q4_0", contains=".gguf")
    expect_exit(2, "synth", path("s.gguf"), "--format", "f32", contains="folder")
    expect_exit(2, "synth", path("z"), "--set", "hiden_size=32", contains="did you mean hidden_size?")
    check(run("synth", path("mistral.gguf"), "--family", "mistral").returncode == 0, "a mistral is a llama in GGUF")
    check("llama" in json.loads(run("inspect", path("mistral.gguf"), "--json").stdout)["model_type"], "... and is read as one")
    os.remove(path("mistral.gguf"))
    expect_exit(3, "synth", path("mistral.gguf"), "--family", "mistral", "--set", "sliding_window=8", contains="no sliding windows")
    for out in ("wide", "wide.gguf"):
        expect_exit(4, "synth", path(out), "--set", "hidden_size=2147483640", "--set", "head_dim=16", preexec_fn=little_memory)
        check(not os.path.exists(path(out)), "... and nothing is there")

    # synth: any family and format runs; the same seed gives the same bytes.
    run("synth", path("a.gguf"), "--family", "qwen3", "--format", "gguf-q4_K", "--set", "hidden_size=256", "--set", "intermediate_size=512", "--set", "head_dim=64")
    run("synth", path("b"), "--family", "gemma3_text", "--format", "bf16", "--seed", "3")
    run("synth", path("c"), "--family", "gemma3_text", "--format", "bf16", "--seed", "3")
    for model in (path("a.gguf"), path("b")):
        result = run("eval", "logits", model, "--tokens", write("s.json", "[1, 2, 3, 4, 5]"), "--out", path("s.npy"))
        check(result.returncode == 0, f"a synthetic model runs {result.stderr.decode()[:200]}")
    same = all(open(os.path.join(path("b"), f), "rb").read() == open(os.path.join(path("c"), f), "rb").read() for f in os.listdir(path("b")))
    check(same, "the same seed gives the same checkpoint")

    # Prefixes: a turn computes its new tokens and at most one page; so does the same beginning after /reset.
    lines = b"Name a fruit.\nAnother one, please.\n/reset\nName a fruit.\n/stats\n"
    turns = [json.loads(line) for line in run("chat", "smollm2", "--json", "--temperature", "0", "--max-tokens", "20", "--system", "Be brief. " * 30, "--context", "512", stdin=lines).stdout.splitlines() if line.startswith(b"{")]
    if len(turns) == 4:
        first, second, again, stats = turns
        new = second["prompt_tokens"] - first["prompt_tokens"] - first["completion_tokens"]
        check(second["prompt_tokens"] - second["cached_tokens"] <= new + 64, f"the second turn computes its {new} new tokens and at most a page: {second}")
        check(again["cached_tokens"] == again["prompt_tokens"] - 1 and again["text"] == first["text"], "after /reset the same beginning is found again, and gives the same answer")
        check(stats["prefixes"]["hits"] >= 1 and stats["pools"][0]["pages"] > 0, "/stats shows pools and prefixes")
    else:
        check(False, f"chat --json gives one line a turn: {turns}")
    samples = json.loads(run("generate", "smollm2", "--prompt", "word " * 200, "--samples", "3", "--max-tokens", "4", "--seed", "1", "--json").stdout)
    cold = json.loads(run("generate", "smollm2", "--prompt", "word " * 200, "--samples", "3", "--max-tokens", "4", "--seed", "1", "--json", "--no-prompt-cache").stdout)
    check([s["cached_tokens"] > 190 for s in samples] == [False, True, True] and [s["token_ids"] for s in samples] == [s["token_ids"] for s in cold], "samples share their prompt's pages and stay what they are")
    plan = json.loads(run("fit", "smollm2", "--context", "512", "--prompt-cache", "64M", "--json").stdout)
    check(plan["prefix_bytes"] >= 64_000_000 and plan["total_bytes"] == sum(plan[k] for k in ("weights_bytes", "kv_bytes", "workspace_bytes", "process_bytes", "prefix_bytes")), "fit counts --prompt-cache")

    # Sensitivity of layers to codecs, and choosing by it.
    run("synth", path("s.gguf"), "--family", "llama", "--set", "head_dim=64", "--set", "num_hidden_layers=3", "--format", "gguf-q8_0")
    sample = write("s.json", json.dumps([(i * 7 + i * i) % 128 for i in range(100)]))
    expect_exit(1, "fit", path("s.gguf"), "--kv", "auto:1000", contains="kv-sensitivity")
    result = run("eval", "kv-sensitivity", path("s.gguf"), "--tokens", sample, "--json")
    check(result.returncode == 0 and os.path.exists(path("kv_config.json")), f"kv-sensitivity writes kv_config.json {result.stderr.decode()[:200]}")
    config = json.load(open(path("kv_config.json")))
    check(len(config) == 3 and all(a["bytes"] > b["bytes"] and a["kl"] < b["kl"] for e in config for a, b in zip(e["measured"], e["measured"][1:])), "each layer has its frontier")
    for budget in (400, 700, 1100):
        plan = json.loads(run("fit", path("s.gguf"), "--kv", f"auto:{budget}", "--json").stdout)
        check(sum(g["bytes_per_token"] for g in plan["kv_groups"]) <= budget, f"--kv auto:{budget} stays within it")
    expect_exit(2, "fit", path("s.gguf"), "--kv", "auto:10", contains="allow at least")
    os.remove(path("kv_config.json"))
    write("foreign.json", json.dumps([dict(e, measured=[dict(m, bytes=m["bytes"] + 2) for m in e["measured"]]) for e in config]))
    expect_exit(2, "fit", path("s.gguf"), "--kv", "auto:1000:" + path("foreign.json"), contains="another model")

    # Memory: the plan bounds the process.
    for model in (SMOL, GEMMA):
        with open(os.path.join(SOURCE, "tests/data/real", "smollm2.tokens.json" if model == SMOL else "gemma3.tokens.json")) as file:
            long_ids = write("long.json", json.dumps(json.load(file)[:1024]))
        plan = json.loads(run("fit", model, "--context", "1024", "--json").stdout)
        check(plan["total_bytes"] == plan["weights_bytes"] + plan["kv_bytes"] + plan["workspace_bytes"] + plan["process_bytes"], "fit adds up")
        check(plan["weights_bytes"] <= 1.03 * plan["stored_bytes"], "packed weights are within 1.03 of the stored bytes")
        result = run("eval", "ppl", model, "--tokens", long_ids, "--window", "1024", "--context", "1024", "--json")
        peak = json.loads(result.stdout)["peak_resident_bytes"] if result.returncode == 0 else math.inf
        check(peak <= 1.05 * plan["total_bytes"], f"peak resident {peak / 1e6:.0f} MB of {plan['total_bytes'] / 1e6:.0f} MB planned")

    # bench and doctor have the fields that scripts read.
    bench = json.loads(run("bench", "smollm2", "-p", "32", "-n", "4", "--runs", "1", "--force", "--json").stdout)
    wanted = ("prefill_tokens_per_s", "decode_tokens_per_s", "decode_bandwidth_fraction", "prefill_arithmetic_fraction", "read_bandwidth_gb_s", "peak_arithmetic_gop_s")
    check(all(bench.get(k, 0) > 0 for k in wanted), "bench --json has its fields")
    check("isa" in json.loads(run("doctor", "--quick", "--json").stdout), "doctor --json")
    program = json.loads(run("inspect", "smollm2", "--program", "--json", "--context", "64").stdout)
    check(any(op["kind"] == "attention" for op in program["program"]["trunk"]["ops"]), "inspect --program shows the ops")


with tempfile.TemporaryDirectory() as scratch:
    main(scratch)
finish()
