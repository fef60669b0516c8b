#!/usr/bin/env python3
"""The command line's tools for scripts and people: batched runs, eval kl, completions, the man page, conversations, bad input.
Standard library only.

    verbs.py KVASIR SOURCE_FOLDER
"""
import glob
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

try:
    import pty
except ImportError:
    pty = None

from harness import ENV, KVASIR, SMOL, SOURCE, Folder, check, expect_exit, finish, lines_of, read, read_npy, run


def batched_runs(at):
    prompts = [
        {"id": "a", "prompt": "Name three colours.", "seed": 5},
        {"id": "b", "messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 40},
        {"prompt": "1 2 3 4 5", "raw": True, "stop": "9", "temperature": 0},
        {"id": 4, "prompt": "word " * 300},
        {"prompt": "Why is grass green?", "top_k": 5, "top_p": 0.9, "temperature": 1.3, "max_tokens": 7},
        {"prompt": "Hello", "max_tokens": 1},
        {"prompt": "What is 2 + 2?", "system": "Answer like a pirate.", "logit_bias": {"28": 4}, "repetition_penalty": 1.2},
        {"prompt": "Write a poem.", "min_tokens": 12, "max_tokens": 12, "ignore_eos": True},
    ]
    source = at("in.jsonl", "\n".join(map(json.dumps, prompts)) + "\n\n")
    common = ["--seed", 3, "--max-tokens", 24, "--context", 200]
    result = run("generate", "smollm2", "--jsonl", source, "--batch", 3, "--chunk", 40, *common)
    rows = lines_of(result.stdout)
    check(result.returncode == 1 and b"1 of 8 lines" in result.stderr, "a line that does not fit gives exit 1, and it is said")
    check([row["line"] for row in rows] == list(range(1, 9)) and rows[0]["id"] == "a" and rows[3]["id"] == 4, "answers come in the order of the lines")
    check(rows[3].get("error", {}).get("code") == "context_exceeded" and "text" not in rows[3], "the line that does not fit says so itself")
    flags = [
        ["--prompt", prompts[0]["prompt"]],
        ["--prompt", "Tell me about the sea.", "--max-tokens", 40],
        ["--prompt", "1 2 3 4 5", "--raw", "--stop", "9", "--temperature", 0],
        None,
        ["--prompt", prompts[4]["prompt"], "--top-k", 5, "--top-p", 0.9, "--temperature", 1.3, "--max-tokens", 7],
        ["--prompt", "Hello", "--max-tokens", 1],
        ["--prompt", "What is 2 + 2?", "--system", "Answer like a pirate.", "--logit-bias", "28=4", "--repetition-penalty", 1.2],
        ["--prompt", "Write a poem.", "--min-tokens", 12, "--max-tokens", 12, "--ignore-eos"],
    ]
    for row, own in zip(rows, flags):
        if own is None:
            continue
        alone = ["generate", "smollm2", "--json", "--seed", row["seed"], "--context", 200]
        alone += own if "--max-tokens" in own else own + ["--max-tokens", 24]
        want = json.loads(run(*alone).stdout)
        same = all(row[k] == want[k] for k in ("text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens"))
        check(same, f"line {row['line']} of a batched run equals the same prompt alone")
    check(rows[0]["seed"] == 5 and len({row["seed"] for row in rows if "seed" in row}) == 7, "each line has a seed of its own")

    out = at("out.jsonl")
    whole = run("generate", "smollm2", "--jsonl", "-", "--output", out, *common, "--batch", 8, "-q", stdin=read(source))
    check(whole.returncode == 1 and read(out) == result.stdout, "another batch, chunk and way of input: the same file")
    expect_exit(2, "generate", "smollm2", "--jsonl", source, "--output", out, *common, contains="--resume")
    # Cut in the middle of the sixth line.
    ends = [i for i, byte in enumerate(result.stdout) if byte == 10]
    at("out.jsonl", result.stdout[:ends[4] + 30])
    again = run("generate", "smollm2", "--jsonl", source, "--output", out, "--resume", *common)
    check(again.returncode == 1 and read(out) == result.stdout and b"and 5 kept" in again.stderr, "--resume drops the torn line and goes on to the same file")
    expect_exit(2, "generate", "smollm2", "--jsonl", source, "--output", out, "--resume", *common, "--temperature", 0.1, contains="out.jsonl line 1")
    expect_exit(2, "generate", "smollm2", "--jsonl", source, "--output", out, "--resume", *common, "--activations", "f32", contains="line 1")
    check(read(out) == result.stdout, "a refused resume leaves the file alone")
    expect_exit(2, "generate", "smollm2", "--jsonl", at("short.jsonl", json.dumps(prompts[0])), "--output", out, "--resume", *common, contains="8 lines")
    expect_exit(2, "generate", "smollm2", "--jsonl", source, "--resume", contains="--output")
    at("short.out", "")
    check(run("generate", "smollm2", "--jsonl", at("short.jsonl"), "--output", at("short.out"), "--max-tokens", 2).returncode == 0, "an empty output file is no obstacle")
    check(run("generate", "smollm2", "--jsonl", at("short.jsonl"), "--output", at("short.out"), "--max-tokens", 3, "--overwrite").returncode == 0
          and len(lines_of(read(at("short.out")))) == 1, "--overwrite begins again")

    # The answers never replace the questions, whatever the file is called.
    questions = read(at("short.jsonl"))
    os.symlink("short.jsonl", at("link.jsonl"))
    os.link(at("short.jsonl"), at("hard.jsonl"))
    for output in ("short.jsonl", "link.jsonl", "hard.jsonl"):
        for how in ("--overwrite", "--resume"):
            expect_exit(2, "generate", "smollm2", "--jsonl", at("short.jsonl"), "--output", at(output), how, contains="is the input and the output")
    expect_exit(2, "generate", "smollm2", "--jsonl", at("link.jsonl"), "--output", at("short.jsonl"), "--overwrite", contains="is the input and the output")
    with open(at("short.jsonl")) as standard_input:
        result = subprocess.run([KVASIR, "generate", "smollm2", "--jsonl", "-", "--output", at("short.jsonl"), "--overwrite"], stdin=standard_input, env=ENV, capture_output=True)
    check(result.returncode == 2 and b"is the input and the output" in result.stderr, f"... read from standard input, too {result.stderr[:200]}")
    check(read(at("short.jsonl")) == questions, "the input stays as it was")

    # Bad lines are refused before anything runs, by number.
    good = json.dumps({"prompt": "x"})
    for bad, says in (("{", "line 2: is not JSON"), ('{"prompt": "x", "max_token": 1}', 'line 2: unknown key "max_token"'), ('{"prompt": ""}', "line 2: the prompt is empty"),
                      ('{"messages": [{"role": "user"}]}', "line 2"), ('{"prompt": "x", "logit_bias": {"99999999": 1}}', "line 2: logit_bias")):
        fresh = at("never.jsonl")
        expect_exit(2, "generate", "smollm2", "--jsonl", at("bad.jsonl", good + "\n" + bad), "--output", fresh, contains=says)
        check(not os.path.exists(fresh), "and nothing is written")
    expect_exit(2, "generate", "smollm2", "--jsonl", at("latin.jsonl", good.encode() + b'\n{"prompt": "caf\xe9"}'), contains="line 2 is not UTF-8")
    expect_exit(2, "generate", "smollm2", "--jsonl", at("none.jsonl", "\n \n"), contains="no line")
    expect_exit(2, "generate", "smollm2", "--jsonl", at("none.jsonl"), "--prompt", "x", contains="--prompt")
    expect_exit(4, "generate", "smollm2", "--jsonl", source, "--memory", "100M", contains="does not fit")

    # Ctrl-C leaves whole lines, and the run can go on.
    many = at("many.jsonl", "".join(json.dumps({"prompt": f"Tell me a long story about the number {i}."}) + "\n" for i in range(200)))
    cut = at("cut.jsonl")
    process = subprocess.Popen([KVASIR, "generate", "smollm2", "--jsonl", many, "--output", cut, "--max-tokens", "12", "--batch", "4"], env=ENV, stderr=subprocess.PIPE)
    deadline = time.time() + 120
    while time.time() < deadline and (not os.path.exists(cut) or os.path.getsize(cut) == 0):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=60)[1]
    data = read(cut)
    check(process.returncode == 130 and b"--resume" in message, "an interrupted run exits 130 and says how to go on")
    check(data.endswith(b"\n") and 0 < len(lines_of(data)) < 200, "it leaves whole lines only")


def npy_rows(path):
    (rows, width), values = read_npy(path)
    return [values[i * width:(i + 1) * width] for i in range(rows)]


def softmax(row):
    largest = max(row)
    norm = largest + math.log(math.fsum(math.exp(x - largest) for x in row))
    return [x - norm for x in row]


def kl_by_hand(reference, logits, ids):
    divergences, same, loss = [], 0, [0.0, 0.0]
    for t, (a, b) in enumerate(zip(reference, logits)):
        p, q = softmax(a), softmax(b)
        divergences.append(math.fsum(math.exp(x) * (x - y) for x, y in zip(p, q)))
        same += max(range(len(p)), key=p.__getitem__) == max(range(len(q)), key=q.__getitem__)
        if t + 1 < len(ids):
            loss[0] -= p[ids[t + 1]]
            loss[1] -= q[ids[t + 1]]
    n = len(divergences)
    mean = math.fsum(divergences) / n
    ordered = sorted(divergences)
    def quantile(q):
        place = q * (n - 1)
        low = int(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, n - 1)] - ordered[low])
    return {"mean_kl": mean, "standard_error": math.sqrt(sum((d - mean) ** 2 for d in divergences) / (n - 1) / n), "median": quantile(0.5),
            "p99": quantile(0.99), "max": ordered[-1], "top1_agreement": same / n, "reference_perplexity": math.exp(loss[0] / (n - 1)),
            "perplexity": math.exp(loss[1] / (n - 1))}


def kl(at):
    size = ["--set", "vocab_size=256", "--seed"]
    run("synth", at("one"), "--family", "llama", "--format", "f32", *size, 1)
    run("synth", at("two"), "--family", "llama", "--format", "f32", *size, 2)
    ids = [(7 * i * i + 3 * i) % 256 for i in range(40)]
    tokens = at("ids.json", json.dumps(ids))
    logits = {}
    for name, extra in (("one", []), ("two", []), ("one8", ["--activations", "bf16"])):
        run("eval", "logits", at(name[:3]), "--tokens", tokens, "--out", at(name + ".npy"), *extra)
        logits[name] = npy_rows(at(name + ".npy"))
    for what, want, args in (
            ("two models", kl_by_hand(logits["two"], logits["one"], ids), [at("one"), "--against", at("two"), "--chunk", "7"]),
            ("two settings", kl_by_hand(logits["one"], logits["one8"], ids), [at("one"), "--activations", "bf16", "--against-activations", "f32"]),
            ("stored logits", kl_by_hand(logits["two"], logits["one"], ids), [at("one"), "--reference", at("two.npy")])):
        result = run("eval", "kl", *args, "--tokens", tokens, "--json")
        got = json.loads(result.stdout) if result.returncode == 0 else {}
        worst = max((abs(got.get(k, math.inf) - v) / max(abs(v), 1e-12) for k, v in want.items()))
        check(worst < 1e-9 and got.get("positions") == 40, f"eval kl of {what} equals the definition (worst relative difference {worst:.1e}) {result.stderr.decode()[:200]}")
    same = json.loads(run("eval", "kl", at("one"), "--against", at("one"), "--tokens", tokens, "--window", 16, "--json").stdout)
    check(same["mean_kl"] == 0 and same["max"] == 0 and same["top1_agreement"] == 1 and same["targets"] == 37, "a model is not far from itself; --window cuts rows")
    check(b"KL(reference || model) over 40 positions" in run("eval", "kl", at("one"), "--against", at("two"), "--tokens", tokens).stdout, "eval kl for people")
    expect_exit(2, "eval", "kl", at("one"), "--tokens", tokens, contains="--against")
    expect_exit(2, "eval", "kl", at("one"), "--against", at("two"), contains="--tokens or --file")
    expect_exit(2, "eval", "kl", at("one"), "--against", at("two"), "--reference", at("two.npy"), "--tokens", tokens, contains="--reference")
    run("synth", at("wide"), "--family", "llama", "--format", "f32", "--set", "vocab_size=320")
    expect_exit(2, "eval", "kl", at("one"), "--against", at("wide"), "--tokens", tokens, contains="256")
    expect_exit(2, "eval", "kl", at("one"), "--reference", at("two.npy"), "--tokens", at("few.json", "[1, 2, 3]"), contains="two.npy")
    expect_exit(1, "eval", "kl", at("one"), "--reference", at("cut.npy", read(at("two.npy"))[:5000]), "--tokens", tokens, contains="cut.npy")
    expect_exit(1, "eval", "kl", at("one"), "--reference", tokens, "--tokens", tokens, contains="no .npy file")
    expect_exit(4, "eval", "kl", at("one"), "--against", at("two"), "--tokens", tokens, "--memory", "40M", contains="together")


VERBS = ["", "chat", "generate", "get", "fit", "inspect", "bench", "eval", "eval logits", "eval ppl", "eval kl", "eval kv-sensitivity", "ls", "rm", "gc", "perplexity", "pack", "tokenize", "detokenize", "render",
         "kv", "kv ls", "synth", "doctor", "completions", "man", "version"]


def descriptions(at):
    for verb in VERBS:
        text = run(*verb.split(), "--help").stdout.decode()
        widest = max(map(len, text.splitlines()), default=0)
        check(0 < len(text.splitlines()) <= 24 and widest <= 80, f"help of '{verb}' fits a screen ({len(text.splitlines())} lines of at most {widest})")
        if verb and " " not in verb:
            check("Example" in text, f"help of '{verb}' has an example")
    check(run("help", "eval", "kl").stdout == run("eval", "kl", "--help").stdout != b"", "help VERB is VERB --help")
    check(b"--dry-base X  " in run("generate", "--help-all").stdout, "--help-all explains every flag")
    check(b"130 interrupted" in run("--help-all").stdout, "--help-all tells the exit codes")

    page = at("kvasir.1", run("man").stdout)
    check(b"eval kl" in read(page) and b"\\-\\-jsonl" in read(page), "the man page knows the verbs and flags")
    if shutil.which("groff"):
        lint = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", page], capture_output=True)
        check(lint.returncode == 0 and lint.stderr == b"", "groff has nothing to say about the man page " + lint.stderr.decode()[:300])
    if shutil.which("man"):
        shown = subprocess.run(["man", "-l", page], capture_output=True, env=dict(ENV, MANPAGER="cat", LC_ALL="C.UTF-8"))
        check(shown.returncode == 0 and b"--max-tokens" in shown.stdout.replace(b"\xe2\x88\x92", b"-"), "man shows it")

    script = at("kvasir.bash", run("completions", "bash").stdout)
    if shutil.which("bash"):
        def complete(line, folder="."):
            words = line.split(" ")
            asked = f"source {script}; COMP_WORDS=({' '.join(w if w else chr(39) * 2 for w in words)}); COMP_CWORD={len(words) - 1}; _kvasir; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            result = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, cwd=folder)
            return result.stdout.decode().split("\n")[:-1] + ([result.stderr.decode()] if result.stderr else [])
        check("generate" in complete("kvasir gen") and "chat" not in complete("kvasir gen"), "bash completes verbs")
        check(sorted(complete("kvasir eval k")) == ["kl", "kv-sensitivity"], "bash completes verbs of verbs")
        check(complete("kvasir generate --json") == ["--json", "--jsonl"] or complete("kvasir generate --json") == ["--jsonl", "--json"], "bash completes flags")
        check("--temperature" in complete("kvasir gen smollm2 --temp"), "bash completes flags of an alias, and those of groups")
        check(complete("kvasir chat --activations b") == ["bf16"], "bash completes values")
        check(complete("kvasir chat --activations = in")[:1] == ["int8"] and "f32" in complete("kvasir chat --activations ="), "bash completes --flag=value")
        check("smollm2" in complete("kvasir fit smo", folder=at.path), "bash completes short names")
        check(complete("kvasir tokenize m --file kvasir.b", folder=at.path) == ["kvasir.bash"], "bash completes files")
        check(complete("kvasir completions z") == ["zsh"], "bash completes positional choices")
    zsh, fish = at("_kvasir", run("completions", "zsh").stdout), at("kvasir.fish", run("completions", "fish").stdout)
    for shell, path, args in (("zsh", zsh, ["-n"]), ("fish", fish, ["--no-execute"])):
        if shutil.which(shell):
            check(subprocess.run([shell, *args, path], capture_output=True).returncode == 0, f"{shell} reads its completion")
    check(read(zsh).startswith(b"#compdef kvasir\n") and b"_kvasir_eval_kl()" in read(zsh) and b":(auto f32 bf16 int8" in read(zsh), "the zsh completion has verbs and values")
    check(b"-a kl -d" in read(fish) and b"-l activations" in read(fish) and b"'auto f32 bf16 int8" in read(fish), "the fish completion has verbs and values")
    expect_exit(2, "completions", "tcsh", contains="bash|zsh|fish")


def session(at, arguments, steps, shell=(), **environment):
    """Runs a chat on a terminal; each step waits for some output behind that of the step before, and types an answer (or calls it with the process)."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = [*shell, KVASIR, "chat", "smollm2", *([] if "--context" in arguments else ["--context", "512"]), "--no-history", *arguments]
        os.execvpe(command[0], command, dict(ENV, TERM="xterm", HOME=at.path, **environment))
    seen, mark, deadline = b"", 0, time.time() + 60
    while time.time() < deadline:
        while steps and (found := seen.find(steps[0][0], mark)) >= 0:
            mark = found + len(steps[0][0])
            _, answer = steps.pop(0)
            answer(pid) if callable(answer) else os.write(terminal, answer)
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    else:
        os.kill(pid, signal.SIGKILL)  # it waits for what nobody types: its status says so
    os.close(terminal)
    return seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def conversations(at):
    base = ["chat", "smollm2", "--json", "--temperature", 0, "--context", 512, "--max-tokens", 16]
    block = run(*base, stdin=b'"""\nName a colour.\nOne word.\n"""\n')
    joined = run(*base, stdin=b"Name a colour.\\\nOne word.\n")
    inline = run(*base, stdin=b'"""Name a colour.\nOne word."""\n')
    texts = [[row["text"] for row in lines_of(r.stdout)] for r in (block, joined, inline)]
    check(len(texts[0]) == 1 and texts[0] == texts[1] == texts[2], f"three ways to write two lines give one message {texts}")
    twice = lines_of(run(*base, stdin=b"Hi!\n/retry\n/undo\n/undo\nHi!\n").stdout)
    check(len(twice) == 3 and twice[0]["text"] == twice[1]["text"] == twice[2]["text"] and twice[1]["reused_tokens"] >= twice[0]["prompt_tokens"] - 1,
          "/retry answers again from the same prompt, /undo forgets it")
    remarks = run(*base, "--prompt-cache-dir", at("store"), stdin=b"Hi!\n/save x\n/set\n/help\n/load x\n/system\n/nonsense\n")
    exported = run("kv", "export", "x", at("x.kvk"), "--prompt-cache-dir", at("store"), "--json")
    removed = run("kv", "rm", "x", "--prompt-cache-dir", at("store"), "--json")
    imported = run("kv", "import", at("x.kvk"), "--prompt-cache-dir", at("store"), "--json")
    check([list(json.loads(r.stdout)) for r in (exported, removed, imported)] == [["exported"], ["removed"], ["imported"]], "kv export, rm and import --json")
    check(len(lines_of(remarks.stdout)) == 1 and b"saved as x" in remarks.stderr and b"unknown command /nonsense" in remarks.stderr, "with --json, remarks go to stderr")
    check(remarks.returncode == 2, "a script ends at a line that cannot be done")
    system = [json.loads(run(*base, *extra, stdin=b"Who are you?\n").stdout)["text"]
              for extra in (["--system", "You are a pirate."], ["--system-file", at("system.txt", "You are a pirate.\n")], [])]
    check(system[0] == system[1] != system[2], "--system and --system-file")
    plain = run("chat", "smollm2", "--temperature", 0, "--context", 512, "--max-tokens", 8, stdin=b"Hi!\n")
    check(b"\033" not in plain.stdout + plain.stderr and b"tokens at" not in plain.stdout, "no escapes and no speed line on a pipe")
    expect_exit(2, "chat", "smollm2", "--context", 512, stdin=b"caf\xe9\n", contains="not UTF-8")
    for unfinished in (b'"""\nabc\n', b"abc\\\n"):
        expect_exit(2, "chat", "smollm2", "--context", 512, stdin=unfinished, contains="not finished")

    # A full context.
    rolling = ["chat", "smollm2", "--temperature", 0, "--context", 130, "--context-policy", "roll", "--max-tokens", 30]
    rolled = run(*rolling, "--json", stdin=b"My name is Bob.\nI like cats and dogs.\nI live in Paris.\nI am 30.\nWho am I?\n")
    rows = lines_of(rolled.stdout)
    check(b"dropped" in rolled.stderr and all(row["context_used"] < 129 for row in rows), f"roll makes room for the answer {[(r['context_used'], r['completion_tokens']) for r in rows]}")
    cut = run("chat", "smollm2", "--context", 60, "--temperature", 0, stdin=b"Tell me a long story.\n").stderr
    check(b"cut: the context is full" in cut and b"cut at max_tokens" in run(*rolling[:-1], 3, stdin=b"Tell me a long story.\n").stderr, "an answer that is cut says by what")

    # A checkpoint whose template opens a thought: the same bytes but for the template's text, of the same length.
    data = read(SMOL)
    old_system, old_open = b"SmolLM, trained by Hugging Face", b"'<|im_start|>assistant\n'"
    new_open = b"'<|im_start|>assistant\n<think>\n'"
    new_system = old_system[:len(old_system) - (len(new_open) - len(old_open))]
    thinker = at("thinker.gguf", data.replace(old_system, new_system, 1).replace(old_open, new_open, 1))
    arguments = ["chat", thinker, "--temperature", 0, "--context", 512, "--max-tokens", 8]
    rows = lines_of(run(*arguments, "--json", stdin=b"Hi!\nAnd?\n").stdout)
    check(len(rows) == 2 and rows[0]["text"] == "" and len(rows[0]["reasoning"]) > 4, "an answer that is cut while thinking is reasoning, not text")
    check(rows[1]["prompt_tokens"] - rows[0]["prompt_tokens"] < 20, "what was thought is not in the next prompt")
    hidden, shown = run(*arguments, stdin=b"Hi!\n").stdout, run(*arguments, "--reasoning", "show", stdin=b"Hi!\n").stdout
    check(rows[0]["reasoning"].encode() not in hidden and rows[0]["reasoning"].encode() in shown and b"(thinking)" in shown, "--reasoning show")
    os.remove(thinker)
    if pty is None:
        return
    seen, status = session(at, ["--context", "110", "--context-policy", "roll", "--max-tokens", "8"],
                           [(b"> ", b"My name is Bob.\n"), (b"tokens at", b""), (b"> ", b"a b " * 60 + b"\n"), (b"alone", b""), (b"> ", b"/undo\n"), (b"forgotten)", b""), (b"> ", b"/undo\n"),
                            (b"nothing to forget", b""), (b"> ", b"/quit\n")])
    check(status == 0 and b"nothing to forget" in seen, "roll forgets nothing for a message that is refused: " + repr(seen[-300:]))
    for environment, escapes in (({}, True), ({"NO_COLOR": "1"}, False)):
        seen, status = session(at, ["--max-tokens", "4"], [(b"> ", b"Hi\n"), (b"tokens at", b""), (b"> ", b"/quit\n")], **environment)
        check(status == 0 and (b"\033[2m" in seen) == escapes, f"on a terminal the speed line is {'dimmed' if escapes else 'plain with NO_COLOR'}")
    seen, status = session(at, ["--temperature", "0"], [(b"> ", b"Write a very long story about a whale.\n"), (b"whale.\r\n", b""), (b"the", b"\x03"), (b"stopped;", b""), (b"> ", b"/quit\n")])
    check(status == 0 and b"[stopped;" in seen.replace(b"\033[2m", b""), "Ctrl-C stops an answer and not the program")
    for locale in ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "", "LANG": ""}, {"LC_ALL": "", "LANG": "xx_XX.UTF-8"}, {"LC_ALL": "C"}):
        typed = "/system caf\u00e9\x7f\u00e9 \u4f60\u597d\U0001f600\x7f!\n".encode()
        seen, status = session(at, [], [(b"> ", typed), (b"(system message set", b""), (b"> ", b"/system\n"), (b"!\r\n", b""), (b"> ", b"/quit\n")], **dict(locale, LC_CTYPE=""))
        check(status == 0 and "/system\r\ncaf\u00e9 \u4f60\u597d!\r\n".encode() in seen, f"any character can be typed and taken back with {locale}: {seen[-150:]}")
    seen, status = session(at, [], [(b"> ", b'"""\n'), (b"... ", b"abc\x03"), (b"^C", b""), (b"> ", b"/system\n"), (b"(no system message)", b""), (b"> ", b'"""\n'), (b"... ", b"abc\n"),
                                    (b"... ", b"\x04"), (b"not finished", b""), (b"> ", b"/quit\n")])
    check(status == 0 and b"tokens at" not in seen and b"(no system message)" in seen, "Ctrl-C and Ctrl-D drop an unfinished block: " + repr(seen[-300:]))
    seen, status = session(at, [], [(b"> ", b"/system abc\x03"), (b"^C", b""), (b"> ", b"/system a\tb\x1b[Hx\x1b[H\x1b[3~\n"), (b"(system message set", b""), (b"> ", b"/system\n"), (b"a\tb\r\n", b""), (b"> ", b"/quit\n")])
    check(status == 0, "Ctrl-C drops a line; Home, Delete and a tab are keys: " + repr(seen[-300:]))
    seen, status = session(at, ["--temperature", "0", "--max-tokens", "40"], [(b"> ", b"Write a very long story about a whale.\n"), (b"whale.\r\n", b""), (b"the", b"\x04")])
    check(status == 0 and seen.rstrip().endswith((b">", b"> ^D")), "Ctrl-D during an answer leaves at the next prompt: " + repr(seen[-300:]))
    seen, status = session(at, [], [(b"> ", b"\x00/sys\x00tem\n"), (b"(no system message)", b""), (b"> ", b"/quit\n")])
    check(status == 0 and b"(no system message)" in seen, "Ctrl-@ is no key: " + repr(seen[-300:]))
    # A shell that runs jobs gets the terminal when one stops.
    seen, status = session(at, [], [(b"> ", b"/sys"), (b"/sys", b"\x1a"), (b"it stopped", b""), (b"> /sys", b"tem\n"), (b"(no system message)", b""), (b"> ", b"/quit\n")],
                           shell=["bash", "--norc", "-c", 'set -m; "$@"; echo "it stopped"; fg > /dev/null', "bash"])
    check(status == 0 and b"(no system message)" in seen, "Ctrl-Z stops the program, and the line goes on afterwards: " + repr(seen[-300:]))
    seen, status = session(at, [], [(b"> ", lambda pid: os.kill(pid, signal.SIGINT)), (b"^C", b""), (b"> ", b"/system\n"), (b"(no system message)", b""), (b"> ", lambda pid: os.kill(pid, signal.SIGTERM))])
    check(status == 130 and b"(no system message)" in seen, "SIGINT drops a line, SIGTERM ends the conversation: " + repr(seen[-300:]))


def files_in(folder):
    return sorted(os.path.join(d, f) for d, _, files in os.walk(folder) for f in files)


def entries_in(store):
    return [f for f in files_in(store) if f.endswith(".kvk")]


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


sys.path.append(os.path.join(SOURCE, "tools", "oracles"))
from kvk_goldens import xxh64  # noqa: E402


def forge(whole, header):
    """A .kvk file with another header of the same or a smaller length, its hash made right."""
    length = struct.unpack_from("<I", whole, 12)[0]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (length - len(text))
    assert len(text) == length
    return whole[:24] + struct.pack("<Q", xxh64(text)) + whole[32:64] + text + whole[64 + length:]


def kv_store(at):
    chat = ["chat", "smollm2", "--json", "--temperature", 0, "--context", 512, "--max-tokens", 8]
    store = at("store")
    run(*chat, "--prompt-cache-dir", store, stdin=b"Name a fruit, and say what it tastes of.\n/save fruit\n")
    (path,) = entries_in(store)
    size = os.path.getsize(path)

    # A byte that is not what was stored is noticed without any flag, and nothing is lost.
    ids = at("ids.json", json.dumps(list(range(300, 400))))
    rows = at("rows")
    logits = ["eval", "logits", "smollm2", "--tokens", ids, "--out", at("x.npy")]
    run(*logits, "--save-at", 90, rows)
    flip(path, size - 5000)
    expect_exit(1, *chat, "--prompt-cache-dir", store, "--continue", "fruit", stdin=b"And?\n", contains="tensor hash mismatch")
    flip(entries_in(rows)[0], os.path.getsize(entries_in(rows)[0]) - 5000)
    expect_exit(1, *logits, "--resume", rows, contains="tensor hash mismatch")
    if pty is not None:
        # The conversation goes on after a /load that fails, with all that the model held of it.
        for name, says in ((b"fruit", b"tensor hash mismatch"), (b"nope", b"nothing is saved as")):
            seen, status = session(at, ["--temperature", "0", "--max-tokens", "4", "--prompt-cache-dir", store],
                                   [(b"> ", b"Say a word of five letters.\n"), (b"tokens at", b""), (b"> ", b"/load " + name + b"\n"), (says, b""), (b"> ", b"/save kept\n"),
                                    (b"saved as kept", b""), (b"> ", b"/quit\n")])
            check(status == 0 and b"saved as kept" in seen, f"/load {name.decode()} fails and loses nothing {seen[-300:]}")
            run("kv", "rm", "kept", "--prompt-cache-dir", store)
    flip(path, size - 5000)
    got = run(*chat, "--prompt-cache-dir", store, "--continue", "fruit", stdin=b"And?\n")
    check(got.returncode == 0, f"once it is sound again it goes on {got.stderr[:200]}")

    # More tokens than there is room for: said in tokens.
    expect_exit(2, *[32 if word == 512 else word for word in chat], "--prompt-cache-dir", store, "--continue", "fruit", stdin=b"And?\n", contains="the context holds 32")
    few = at("few.json", json.dumps(list(range(300, 360))))
    run(*logits, "--save-at", 90, at("rows2"))
    expect_exit(2, "eval", "logits", "smollm2", "--tokens", few, "--out", at("x.npy"), "--resume", at("rows2"), contains="90 tokens are stored")

    # Whose row it is, in the words of the flags.
    run(*logits, "--kv", "rot:4", "--save-at", 90, at("rot"))
    expect_exit(1, *logits, "--kv", "rot:5", "--resume", at("rot"), contains="(SmolLM2-135M-Instruct.Q4_1.gguf: kv0 is rot:4 there and rot:5 here)")
    check(run(*logits, "--kv", "rot:4", "--activations", "int8", "--resume", at("rot")).returncode == 0, "what auto comes to may resume what auto stored")

    # The verbs of a store: what is said of an entry is what is known of it.
    def kv(*args):
        return run("kv", *args, "--prompt-cache-dir", store)
    (entry,) = entries_in(store)
    name = os.path.basename(entry)
    for which in ("", "s", "saved-", name[6:9]):
        expect_exit(1, "kv", "rm", which, "--prompt-cache-dir", store, contains="no entry")
    (listed,) = json.loads(kv("ls", "--json").stdout)
    check(listed["sound"] is None and listed["name"] == "fruit", "kv ls has read the header only")
    shown = json.loads(kv("show", name[6:12], "--json").stdout)
    check(shown["sound"] is None and len(shown["tokenizer_hash"]) == 16 and shown["groups"][0]["geometry"].startswith("30 layers"), "kv show --json has the header")
    text = kv("show", "fruit").stdout.decode()
    check("activations=int8" in text and "tokenizer_hash" in text and not text.startswith("{"), "kv show is for people")
    check(json.loads(kv("verify", "--json").stdout)[0]["sound"] is True, "kv verify has read all of it")
    flip(entry, size - 5000)
    damaged = kv("verify", "--json")
    check(damaged.returncode == 1 and {k: json.loads(damaged.stdout)[0][k] for k in ("sound", "name", "tokens")} == {"sound": False, "name": "fruit", "tokens": listed["tokens"]},
          "a damaged entry keeps its name")
    check(kv("verify").stdout.count(entry.encode()) == 1, "and its path is printed once")
    flip(entry, size - 5000)
    kv("export", "fruit", at("fruit.kvk"))
    for _ in range(2):
        kv("import", at("fruit.kvk"))
    check(len(entries_in(store)) == 1 and kv("show", "fruit").returncode == 0, "importing twice leaves one entry")

    # An export among the store's files is no entry: it is reported, and nothing that only reads removes it.
    stray = shutil.copy(at("fruit.kvk"), os.path.dirname(entries_in(store)[0]))
    check(kv("verify").returncode == 1 and b"holds the conversation 'fruit'" in kv("verify").stdout and kv("ls").returncode == 1, "kv verify and ls tell of it")
    got = run(*chat, "--prompt-cache-dir", store, "--continue", "fruit", stdin=b"")
    check(got.returncode == 0 and b"(kept)" in got.stderr and os.path.exists(stray), f"chat keeps it {got.stderr[:200]}")
    os.remove(stray)
    os.symlink("loop.kvk", os.path.join(os.path.dirname(entries_in(store)[0]), "loop.kvk"))
    expect_exit(1, "kv", "verify", store, contains="1 of 2 entries damaged")
    expect_exit(1, "kv", "ls", store, contains="1 of 2 entries damaged")
    os.remove(os.path.join(os.path.dirname(entries_in(store)[0]), "loop.kvk"))
    for args in (["ls", ""], ["verify", ""], ["verify", "--prompt-cache-dir", ""], ["show", "fruit", "--prompt-cache-dir", ""], ["import", at("fruit.kvk"), "--prompt-cache-dir", ""]):
        expect_exit(2, "kv", *args, contains="'' is not a folder")

    # Names, as they are seen; and what --continue brings is not silently replaced.
    def say(lines, *flags):
        return run(*chat, "--prompt-cache-dir", at("names"), *flags, stdin=b"Hi!\n" + lines)
    say(b"/save  y  \n")
    check(json.loads(run("kv", "ls", "--json", "--prompt-cache-dir", at("names")).stdout)[0]["name"] == "y", "a name has no blanks around it")
    refused = say(b"/save caf\xe9\n")
    check(refused.returncode == 2 and b"not UTF-8" in refused.stderr, f"a name that is no UTF-8 is refused {refused.stderr[:200]}")
    for flag in ("--system", "--system-file"):
        expect_exit(2, *chat, "--prompt-cache-dir", at("names"), "--continue", "y", flag, at("fruit.kvk"), contains="--continue")
    # Messages that no template takes: refused before the conversation that is there is given up.
    (named,) = entries_in(at("names"))
    whole = read(named)
    length = struct.unpack_from("<I", whole, 12)[0]
    header = json.loads(whole[64:64 + length])
    header["metadata"] = json.dumps({"messages": [1, 2], "system": ""}) + " " * (len(header["metadata"]) - 40)
    bad = forge(whole, header)
    with open(named, "wb") as file:
        file.write(bad)
    check(run("kv", "verify", at("names")).returncode == 0, "the forged file is sound")
    expect_exit(1, *chat, "--prompt-cache-dir", at("names"), "--continue", "y", stdin=b"And?\n", contains="its messages cannot be read")

    # What is asked for is done, or it is said that it is not.
    for verb in (["generate", "smollm2", "--prompt", "x"], ["chat", "smollm2"]):
        expect_exit(2, *verb, "--kv-verify", contains="--prompt-cache-disk")
    expect_exit(2, "generate", "smollm2", "--prompt", "x", "--prompt-cache-dir", at("names"), contains="--prompt-cache-disk")
    noted = run(*chat, "--prompt-cache-dir", at("names"), "--state-snapshot-interval", 64, stdin=b"/stats\n")
    check(noted.returncode == 0 and b"--state-snapshot-interval does nothing" in noted.stderr, "an interval for a model without windows is told")
    answer = json.loads(run("generate", "smollm2", "--prompt", "Hi", "--max-tokens", 2, "--json", "--kv", "rot:4", "--kv-start", 40, "--kv-layer", "0=f16").stdout)
    check(answer["kv_start"] == 40 and {(g["codec"], g.get("plain")) for g in answer["kv_groups"]} == {("rot:4", "bf16"), ("f16", None)} and answer["kv"].startswith("config-"), f"generate --json names the codecs {answer.get('kv_groups')}")
    check(json.loads(kv("show", "fruit", "--json").stdout)["encoded"] is False, "plain pages are not encoded")
    for args, says in ((["es1", 10], "'es1' is not a whole number"), ([0, at("es")], "'0' is not a whole number")):
        expect_exit(2, *logits, "--save-at", *args, contains=says)
    expect_exit(1, *logits, "--save-at", 5, ids, contains="Not a directory")
    strange = at("strange.json", "[300, 99999999]")
    for args in (["logits", "smollm2", "--tokens", strange, "--out", at("x.npy")], ["logits", "smollm2", "--tokens", ids, "--with", strange, "--out", at("x.npy")],
                 ["ppl", "smollm2", "--tokens", strange], ["kl", "smollm2", "--tokens", strange, "--against-kv", "f32"], ["kv-sensitivity", "smollm2", "--tokens", strange, "--out", at("s.json")]):
        expect_exit(2, "eval", *args, contains="strange.json: token 99999999")
    expect_exit(2, "eval", "kl", "smollm2", "--tokens", ids, "--against-kv", "foo", contains="--against-kv foo: ")
    expect_exit(3, "eval", "kl", "smollm2", "--tokens", ids, "--against-kv", "affine:7", contains="--against-kv affine:7: ")

    # A limit on file sizes is an error like a full disk.
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
    os.makedirs(at("small"))
    expect_exit(4, "kv", "export", "fruit", at("small/f.kvk"), "--prompt-cache-dir", store, contains="File too large", preexec_fn=limited)
    expect_exit(4, *chat, "--prompt-cache-dir", at("small"), stdin=b"Name a fruit, and say what it tastes of.\n/save big\n", contains="File too large", preexec_fn=limited)
    check(not [f for f in files_in(at("small")) if f.endswith((".kvk", ".tmp"))], "and nothing half-written stays")

    # The plan is what chat takes, to the byte, also where layers have windows; --kv-start is told.
    run("synth", at("g.gguf"), "--family", "gemma3_text", "--set", "head_dim=64", "--set", "sliding_window=96", "--format", "gguf-q8_0")
    for flags in ([], ["--kv", "rot:4"], ["--kv", "affine:8", "--kv-start", 100]):
        plan = json.loads(run("fit", at("g.gguf"), "--context", 512, *flags, "--json").stdout)
        total = sum(g["pages"] * g["page_bytes"] + g.get("plain_pages", 0) * g.get("plain_page_bytes", 0) for g in plan["kv_groups"])
        check(plan["kv_bytes"] == total and plan["kv_start"] == (100 if "--kv-start" in flags else 0), f"kv_bytes is derived from what fit says {flags}")
    check({g["codec"]: g["plain_codec"] for g in plan["kv_groups"]} == {"affine:8:64": "bf16"}, "fit says what comes before the codec")
    inspected = json.loads(run("inspect", at("g.gguf"), "--context", 512, "--kv", "affine:8", "--kv-start", 100, "--json").stdout)
    check(inspected["kv"] == plan["kv"] and inspected["kv_start"] == 100 and [g["codec"] for g in inspected["kv_groups"]] == [g["codec"] for g in plan["kv_groups"]], "so does inspect")
    expect_exit(2, "fit", at("g.gguf"), "--context", 512, "--kv", "affine:8", "--kv-start", 512, contains="--kv-start 512")
    for flags in (["--no-prompt-cache", "--kv", "rot:4"], ["--prompt-cache", "8M"]):
        planned = json.loads(run("fit", "smollm2", "--chat", "--context", 512, *flags, "--json").stdout)
        stats = lines_of(run(*chat, *flags, stdin=b"/stats\n").stdout)[0]
        check(sum(p["page_bytes"] * p["pages_planned"] for p in stats["pools"]) == planned["kv_bytes"] + planned["prefix_bytes"], f"fit --chat plans the pools of chat {flags}")
    few_mb = json.loads(run("fit", at("g.gguf"), "--chat", "--context", 512, "--no-prompt-cache", "--json").stdout)
    plain = json.loads(run("fit", at("g.gguf"), "--context", 512, "--no-prompt-cache", "--json").stdout)
    check(few_mb["total_bytes"] == plain["chat_total_bytes"] > plain["total_bytes"], "chat needs more where layers have windows, and fit says so")
    between = (few_mb["total_bytes"] + plain["total_bytes"]) // 2
    noted = run("fit", at("g.gguf"), "--context", 512, "--no-prompt-cache", "--memory", between)
    check(noted.returncode == 0 and b"for kvasir chat it does not fit" in noted.stdout, "it says so in words, too")
    check(run("fit", at("g.gguf"), "--chat", "--context", 512, "--no-prompt-cache", "--memory", between).returncode == 4, "fit --chat refuses it")

    # Measuring is refused before it begins, and leaves what was there.
    at("kept.json", "[]")
    measure = ["eval", "kv-sensitivity", at("g.gguf"), "--tokens", at("ten.json", "[1, 2, 3]")]
    expect_exit(2, *measure, "--out", at("kept.json"), "--bytes", 10, contains="--bytes 10")
    expect_exit(1, *measure, "--out", at("no/such/kv.json"), contains="No such file or directory")
    expect_exit(2, *measure, "--out", at("kept.json"), "--codec", "turbo", contains="--codec turbo: 'turbo' is no KV codec")
    for codec, says in (("affine:7", "requested number of bits 7"), ("affine:8:128", "128")):
        expect_exit(3, *measure, "--out", at("kept.json"), "--codec", codec, "--codec", "f16", contains=f"--codec {codec}: ")
        expect_exit(3, *measure, "--together", codec, contains=f"--together {codec}: ")
    for flags in (["--codec", "f16"], ["--bytes", 7000], ["--out", at("kept.json")]):
        expect_exit(2, *measure, "--together", "f16", *flags, contains=flags[0] + ": --together")
    check(read(at("kept.json")) == b"[]", "the table that was there is still there")

    # Who only looks makes nothing.
    os.makedirs(at("empty"))
    expect_exit(1, *logits, "--resume", at("empty"), contains="nothing is saved as")
    expect_exit(1, *chat, "--prompt-cache-dir", at("absent"), "--continue", "nope", contains="nothing is saved as")
    expect_exit(1, *chat, "--prompt-cache-dir", at("absent"), stdin=b"/load nope\n", contains="nothing is saved as")
    check(not os.listdir(at("empty")) and not os.path.exists(at("absent")), "neither a folder nor an index")


def checkpoints(at):
    """What is said of a checkpoint before it runs."""
    model, weights = at("tiny"), at("tiny/model.safetensors")
    run("synth", model, "--seed", 1)
    looked = json.loads(run("inspect", model, "--check-tensors", "--json").stdout)
    check(looked["checked_tensors"] == 39 and any("has no tokenizer.json" in n for n in looked["notes"]), f"inspect --check-tensors reads all, and says that no text can be read {looked['notes']}")
    data = bytearray(read(weights))
    (length,) = struct.unpack("<Q", data[:8])
    place = json.loads(data[8:8 + length])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0] + 8 + length + 4 * (64 * 5 + 3)
    data[place:place + 4] = struct.pack("<f", math.nan)
    at("tiny/model.safetensors", bytes(data))
    check(run("inspect", model).returncode == 0, "a NaN is no matter of headers")
    result = expect_exit(1, "inspect", model, "--check-tensors", contains="model.layers.1.mlp.up_proj.weight")
    check(b"tiny/model.safetensors: " in result.stderr and b"row 5, column 3" in result.stderr, f"a NaN is found by file, tensor and place {result.stderr}")
    # Ids that the model has no logits for: of the vocabulary an error, of added tokens a note.
    run("synth", model, "--seed", 1, "--overwrite")
    words = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, **{f"w{i}": i for i in range(2, 128)}}, "unk_token": "a"}}
    few = ["generate", model, "--raw", "--prompt", "a b", "--max-tokens", 1, "--seed", 1]
    at("tiny/tokenizer.json", json.dumps(words))
    check(run(*few).returncode == 0, "a tiny tokenizer serves")
    added = {"id": 128, "content": "<picture>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    at("tiny/tokenizer.json", json.dumps(dict(words, added_tokens=[added])))
    result = run(*few)
    check(result.returncode == 0 and b"1 added tokens are beyond the 128 logits" in result.stderr, f"an added token beyond the logits is told {result.stderr}")
    words["model"]["vocab"]["far"] = 500
    at("tiny/tokenizer.json", json.dumps(words))
    expect_exit(1, *few, contains="token far of its vocabulary has id 500, and the model has 128 logits")
    at("tiny/tokenizer.json", json.dumps(dict(words, model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})))
    result = expect_exit(1, *few, contains="tiny/tokenizer.json: ")


def bad_input(at):
    for args, says in ((["--max-tokens", "99999999999999999999"], "--max-tokens"), (["--max-tokens", "-5"], "--max-tokens"), (["--seed", "-1"], "--seed"),
                       (["--seed", "18446744073709551616"], "--seed"), (["--temperature", "nan"], "--temperature"), (["--temperature", "-1"], "--temperature"),
                       (["--temperature", "1e999"], "--temperature"), (["--top-p", "nan"], "--top-p"), (["--top-k", "-1"], "--top-k"), (["--threads", "0"], "--threads"),
                       (["--threads", "999999999"], "--threads"), (["--context", "1e3"], "--context"), (["--chunk", "0"], "--chunk"), (["--n", "0"], "--samples"),
                       (["--kv-plain", "f8"], "--kv-plain"), (["--logprobs", "-2"], "--logprobs"), (["--frobnicate"], "unknown flag --frobnicate"),
                       (["extra"], "unexpected argument 'extra'"), (["--stop", "x" * 2000], "stop string")):
        expect_exit(2, "generate", "smollm2", "--prompt", "hi", *args, contains=says)
    # Settings that nothing reads.
    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--stop", "", contains="--stop")
    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--logprobs", 5, contains="--logprobs: they are part of --json")
    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--sampler-order", "top_k", "--top-p", 0.5, contains="top_p is given, and the sampler order leaves top_p out")
    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--logit-bias", "99999999999=1000", contains="--logit-bias")
    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--set", "messages=1", contains="'messages' is the conversation's own")
    expect_exit(2, "synth", at("never"), "--config", at("c.json", "{}"), "--family", "llama", contains="--family")
    few = ["generate", "smollm2", "--prompt", "hi", "--max-tokens", 2]
    messages = at("messages.json", '[{"role": "user", "content": "Hi"}]')
    for args, says in (([*few, "--set", "mesages=1"], "does not read 'mesages': did you mean messages?"), (["render", "smollm2", "--messages", messages, "--set", "foo=bar"], "does not read 'foo'"),
                       (["render", "smollm2", "--messages", messages, "--tools", at("tools.json", "[]")], "does not read 'tools'"),
                       (["fit", "smollm2", "--context", 20000], "the 8192 that the model declares"), (["tokenize", "smollm2", "--file", at("bad.txt", b"ab\xff")], "byte 2 is 0xFF"),
                       (["generate", "smollm2", "--raw", "--file", at("bad.txt"), "--max-tokens", 2], "byte 2 is 0xFF")):
        result = run(*args)
        check(result.returncode == 0 and says in result.stderr.decode(), f"said on standard error: {says} {result.stderr[:200]}")
    check(b"did you mean KVASIR_TEMPERATURE?" in run(*few, env={"KVASIR_TEMPERATUR": "0"}).stderr, "an unknown variable of the environment is told")
    lines = run("chat", "smollm2", "--context", 256, stdin=b"/set foo=1\n/set repetition_penalty=1.25\n/temp 0.375\n/set\n")
    for says in (b"foo=1", b"repetition_penalty=1.25", b"temperature=0.375"):
        check(says in lines.stdout and lines.returncode == 0, f"chat /set: {says.decode()} {lines.stdout}")
    check(b"does not read 'foo'" in lines.stderr, "chat /set: what the template does not read is told")
    # A script ends at what cannot be done.
    for line, status, says in (("/set temprature=0.9", 2, "unknown setting temprature: did you mean temperature?"), ("/set max_tokens=0", 2, "max_tokens: '0' is not a whole number >= 1"),
                               ("/set top_p=2", 2, "top_p: '2'"), ("/set typical_p=0.5", 2, "typical_p cannot be changed"), ("/set x", 2, "expected /set NAME=VALUE"), ("/save", 2, "expected /save NAME"),
                               ("/nope", 2, "unknown command /nope"), ("/load nope", 1, "nope")):
        ended = run("chat", "smollm2", "--context", 256, "--prompt-cache-dir", at("none"), stdin=f"{line}\n/set\n".encode())
        check(ended.returncode == status and says in ended.stderr.decode() and b"temperature=" not in ended.stdout, f"chat: {line}: {ended.returncode} {ended.stderr[:200]}")
    expect_exit(1, "fit", "smolm2", contains="did you mean smollm2?")
    expect_exit(2, "get", "https://evil.example/org/name", contains="huggingface.co")
    ids = at("ids.json", "[300, 301]")
    expect_exit(1, "eval", "logits", "smollm2", "--tokens", ids, "--out", at.path, contains="Is a directory")
    expect_exit(2, "eval", "logits", "smollm2", "--tokens", ids, "--out", "-", contains="/dev/stdout")
    empty = json.loads(run("bench", "smollm2", "-p", 0, "-n", 0, "--force", "--json").stdout)
    check(empty["prefill_tokens_per_s"] is None and empty["decode_bandwidth_fraction"] is None, "bench --json has its keys, whatever was measured")
    check(run("version", "--no-json").stdout == run("version").stdout and json.loads(run("generate", "smollm2", "--prompt", "hi", "--max-tokens", 2, "--no-raw", "--json").stdout), "--no-x of a flag")
    expect_exit(2, "generate", "smollm2", "--no-jsn", contains="--no-jsn")

    expect_exit(2, "generate", "smollm2", "--prompt", "hi", "--system", "a", "--system-file", at("system.txt", "b"), contains="--system")
    expect_exit(2, "generate", "smollm2", "--raw", "--prompt", "hi", "--system", "a", contains="raw")
    expect_exit(2, "generate", "smollm2", "--prompt", "", contains="empty")
    expect_exit(2, "generate", "smollm2", "--file", at("empty.txt", ""), contains="empty")
    expect_exit(2, "generate", "smollm2", "--file", "/dev/null", contains="empty")
    expect_exit(2, "generate", "smollm2", stdin=b"", contains="empty")
    expect_exit(2, "generate", "smollm2", stdin=b"\xff\xfe\x00binary", contains="not UTF-8: byte 0 is 0xFF")
    for verb in (["generate", "smollm2", "--file"], ["tokenize", "smollm2", "--file"], ["detokenize", "smollm2", "--ids"], ["render", "smollm2", "--messages"],
                 ["eval", "logits", "smollm2", "--out", at("x.npy"), "--tokens"], ["generate", "smollm2", "--jsonl"]):
        expect_exit(2, *verb, at.path, contains="folder")
    expect_exit(1, "generate", "smollm2", "--file", "/no/such/file", contains="/no/such/file")
    expect_exit(2, contains="no command")
    for words, near in ((["help", "genrate"], "generate"), (["genrate", "--help"], "generate"), (["eval", "lgits"], "logits"), (["kv", "lss"], "ls"), (["help", "eval", "lgits"], "logits")):
        expect_exit(2, *words, contains=f"did you mean {near}?")
    expect_exit(2, "get", "", "--dry-run", contains="MODEL")
    fresh = {"XDG_STATE_HOME": at("state")}
    check(run("kv", "ls", env=fresh).returncode == 0 and run("kv", "ls", "--json", env=fresh).stdout == b"[]\n" and run("kv", "verify", env=fresh).returncode == 0, "before anything is saved, kv ls lists nothing")
    expect_exit(1, "kv", "ls", at("state"), contains="no such folder")
    piped = subprocess.run(["bash", "-c", f"'{KVASIR}' tokenize smollm2 --json --file <(printf 'a b')"], capture_output=True, env=ENV)
    check(piped.returncode == 0 and len(json.loads(piped.stdout)["ids"]) == 2, "process substitution is a file, too")
    check(json.loads(run("tokenize", "smollm2", "--json", stdin=bytes(range(256))).stdout)["ids"] != [], "binary input is tokenized")
    deep = "[" * 100000 + "]" * 100000
    for args in (["detokenize", "smollm2", "--ids", at("deep.json", deep)], ["render", "smollm2", "--messages", at("deep.json")], ["render", "smollm2", "--messages", at("hi.json", "[]"), "--tools", at("deep.json")],
                 ["eval", "logits", "smollm2", "--tokens", at("deep.json"), "--out", at("x.npy")], ["generate", "smollm2", "--prompt", "hi", "--set", "x=" + deep[:60000] + deep[-60000:]], ["synth", at("s"), "--set", "x=" + deep[:60000] + deep[-60000:]]):
        expect_exit(2, *args, contains="levels deep")
    expect_exit(1, "synth", at("s"), "--config", at("deep.json"), contains="nesting")
    expect_exit(2, "render", "smollm2", "--messages", at("bad.json", '[{"role": "user",\n "content" 1}]'), contains="line 2")
    run("synth", at("side"), "--family", "llama", "--set", "vocab_size=64")
    for text in ("{", "[1]", ""):
        at("side/generation_config.json", text)
        said = run("eval", "logits", at("side"), "--tokens", at("one.json", "[1]"), "--out", at("x.npy"))
        check(said.returncode == 0 and said.stderr.count(b"generation_config.json") == 1, f"a generation_config.json that is {text!r} is ignored with a note: {said.stderr}")
    words = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}}
    os.mkdir(at("words"))
    for place in (at("words/tokenizer.json", json.dumps(words)), at("words")):
        shown = run("tokenize", place, "--text", "b a c", "--json").stdout
        check(json.loads(shown) == {"ids": [1, 0, 2], "pieces": ["b", "a", "?"]}, "a tokenizer without a model tokenizes")
        check(run("detokenize", place, "--ids", at("two.json", "[0, 1]")).stdout == b"a b", "and its ids become text")
    expect_exit(1, "fit", at("words"), contains="no model")
    for text, says in (("{", "not JSON"), ("[]", "expected a JSON object")):
        at("words/chat_template.json", text)
        expect_exit(1, "tokenize", at("words"), "--text", "a", contains=says)
    pieces = run("generate", "smollm2", "--prompt", "Write an emoji.", "--json", "--logprobs", 300, "--max-tokens", 4, "--temperature", 0)
    check(pieces.returncode == 0 and len(json.loads(pieces.stdout)["logprobs"][0]["top"]) == 300, "pieces that are no characters do not break JSON")

    # Output that cannot be written, or that nobody reads.
    if os.path.exists("/dev/full"):
        messages, ids = at("m.json", '[{"role": "user", "content": "hi"}]'), at("i.json", "[300, 301]")
        for args in (["version"], ["--help"], ["man"], ["completions", "bash"], ["generate", "smollm2", "--prompt", "hi", "--max-tokens", "4"],
                     ["generate", "smollm2", "--prompt", "hi", "--max-tokens", "4", "--json"], ["tokenize", "smollm2", "--text", "hi"], ["detokenize", "smollm2", "--ids", ids],
                     ["render", "smollm2", "--messages", messages], ["fit", "smollm2", "--json"], ["inspect", "smollm2"], ["synth", "--list"], ["doctor", "--quick"],
                     ["chat", "smollm2", "--context", "256", "--max-tokens", "4"], ["generate", "smollm2", "--max-tokens", "4", "--jsonl", at("one.jsonl", '{"prompt": "hi"}')]):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([KVASIR, *args], stdout=full, stderr=subprocess.PIPE, input=b"Hi\nHi\n" if args[0] == "chat" else b"", env=ENV)
            check(result.returncode == 1 and b"cannot be written" in result.stderr, f"a full disk is an error of {' '.join(args[:2])} -> {result.returncode} {result.stderr[:200]}")
        expect_exit(1, "eval", "logits", "smollm2", "--tokens", ids, "--out", "/dev/full", contains="cannot be written")
        expect_exit(1, "generate", "smollm2", "--max-tokens", "4", "--jsonl", at("one.jsonl"), "--output", "/dev/full", contains="cannot be written")
    for command in (f"'{KVASIR}' generate smollm2 --prompt 'Tell a story.' --max-tokens 300 | head -c 5", f"'{KVASIR}' man | true", f"'{KVASIR}' inspect smollm2 --tensors | head -1",
                    f"'{KVASIR}' generate smollm2 --max-tokens 30 --jsonl {at('two.jsonl', json.dumps({'prompt': 'hi'}) + chr(10) + json.dumps({'prompt': 'ho'}))} | true"):
        result = subprocess.run(["bash", "-c", command + "; exit ${PIPESTATUS[0]}"], capture_output=True, env=ENV, timeout=120)
        check(result.returncode in (0, 141) and b"terminate" not in result.stderr and b"internal" not in result.stderr, f"a closed pipe ends it quietly ({result.returncode}) {result.stderr[:200]}")
    closed = subprocess.run(["bash", "-c", f"'{KVASIR}' version >&-"], capture_output=True, env=ENV)
    check(closed.returncode == 1 and b"cannot be written" in closed.stderr, "a closed standard output is an error")
    closed = subprocess.run(["bash", "-c", f"'{KVASIR}' eval logits smollm2 --tokens {at('i.json', '[1, 2]')} --out {at('c.npy')} --json <&- >&-"], capture_output=True, env=ENV)
    check(closed.returncode == 1 and len(npy_rows(at("c.npy"))) == 2, "files never land on a closed standard descriptor")


def packed(at):
    # A link beside which the packed file lies: nothing is written beside the model itself.
    model, beside = at("m.gguf"), at("m.gguf.kpack")
    os.symlink(SMOL, model)
    ask = ["--prompt", "Name three colours.", "--temperature", 0, "--max-tokens", 6, "--json"]

    def tokens(*flags):
        result = run("generate", model, *ask, *flags)
        return json.loads(result.stdout)["token_ids"] if result.returncode == 0 else None, result.stderr.decode(errors="replace")

    def pack_file(*flags):
        return json.loads(run("fit", model, "--json", *flags).stdout)["pack_file"]

    want, message = tokens("--pack", "off")
    check(want and not message, "--pack off packs in memory")
    check(tokens() == (want, "") and pack_file() == "", "--pack auto without a file packs in memory, and there is nothing to say")
    result = run("pack", model, "--json")
    plan = json.loads(result.stdout)
    size = os.path.getsize(beside)
    check(result.returncode == 0 and plan["pack_file"] == beside and plan["bytes"] == size, "pack writes the file beside the model")
    weights = json.loads(run("fit", model, "--json").stdout)["weights_bytes"]
    check(0 < plan["memory_bytes"] < weights, f"packing needs less memory than the weights: {plan['memory_bytes']} of {weights}")
    for flags, file in (((), beside), (("--pack", "auto"), beside), (("--pack", beside), beside), (("--pack", "off"), "")):
        check(tokens(*flags) == (want, "") and pack_file(*flags) == file, f"the same tokens with {flags or 'no flag'}, and fit shows the file")
    good = read(beside)
    # Damage of the weights, then of the header.
    for where in (size - 1, size // 2, 70):
        at("m.gguf.kpack", good)
        flip(beside, where)
        got, message = tokens()
        check(got == want and message.count("\n") == 1 and "damaged packed model" in message and "packed in memory" in message, f"--pack auto, byte {where} flipped: a note, and the same tokens: {message}")
        expect_exit(1, "generate", model, *ask, "--pack", beside, contains="damaged packed model")
        result = run("bench", model, "-p", 8, "-n", 1, "--runs", 1, "--force", "--json")
        check(result.returncode == 0 and b"packed in memory" in result.stderr, f"bench too: {result.stderr[-200:]}")
        check((pack_file() == "") == (where == 70), "fit reads the header alone")
    # Another model's file.
    small, other = at("other.gguf"), at("other.kpack")
    run("synth", small, "--size", "tiny", "--format", "gguf-q4_0")
    check(run("pack", small, "--out", other).returncode == 0, "pack --out")
    expect_exit(2, "generate", model, *ask, "--pack", other, contains="packed from another model")
    at("m.gguf.kpack", read(other))
    got, message = tokens()
    check(got == want and "packed from another model" in message and "packed in memory" in message, "--pack auto, another model's file: a note")
    at("m.gguf.kpack", "no pack at all")
    got, message = tokens()
    check(got == want and "no packed model" in message, "--pack auto, any other file: a note")
    expect_exit(1, "generate", model, *ask, "--pack", at("absent.kpack"), contains="absent.kpack")
    os.remove(beside)
    expect_exit(4, "pack", model, "--memory", "30M", contains="needed to pack it")
    check(not os.path.exists(beside), "pack that does not fit leaves nothing")
    # What is no file stays what it is.
    pipe, link = at("pipe"), at("link.kpack")
    os.mkfifo(pipe)
    os.symlink("target.kpack", link)
    expect_exit(1, "pack", small, "--out", pipe, contains="a device or a pipe")
    check(stat.S_ISFIFO(os.stat(pipe).st_mode), "a pipe is still one")
    check(run("pack", small, "--out", link).returncode == 0 and os.path.islink(link) and read(at("target.kpack")) == read(other), "a link stays, what it names is written")
    try:
        node = at("node")
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        expect_exit(1, "pack", small, "--out", node, contains="a device or a pipe")
        check(run("synth", node, "--size", "tiny", "--format", "gguf-q4_0", "--overwrite").returncode in (0, 1, 2), "synth on a device")
        check(stat.S_ISCHR(os.stat(node).st_mode), "a device is still one")
    except PermissionError:
        print("no device can be made here")
    check(not any("partial" in name for name in os.listdir(at(""))), "nothing half written is left")


# SmolLM2: 30 layers of 3 KV heads, 64 + 64 channels each.
PLAIN_KEY = 30 * 3 * 128 * 2


def benchmark(at):
    def bench(*flags):
        result = run("bench", "smollm2", "-p", 0, "-n", 2, "--runs", 1, "--force", "--json", *flags)
        check(result.returncode == 0, f"bench {flags}: {result.stderr[-200:]}")
        return json.loads(result.stdout)

    def near(value, wanted):
        return abs(value - wanted) < 0.01 * wanted

    # The first run warms up: the counted one reads 2003 and 2004 keys.
    out = bench("--depth", 2000, "--profile")
    check(out["kv_start"] == 0 and [group["codec"] for group in out["kv_groups"]] == ["bf16"], f"what the cache held: {out['kv_groups']}")
    encoded = bench("--kv", "affine:4", "--kv-start", 100, "--depth", 300, "--context", 512)
    check(encoded["kv_start"] == 100 and encoded["kv_groups"][0]["codec"].startswith("affine:4") and encoded["kv_groups"][0]["plain"] == "bf16", f"... encoded: {encoded['kv_groups']}")
    check(out["schema_version"] == 1 and near(out["decode_kv_bytes"], 2003.5 * PLAIN_KEY), f"the bytes of the keys and values: {out['decode_kv_bytes']}")
    ops = {row["op"]: row for row in out["decode_profile"]}
    attention = ops["attention"]
    check(near(attention["gbytes"], 4007 * PLAIN_KEY / 1e9) and near(attention["gops"], 30 * 4007 * 9 * 64 * 4 / 1e9), f"--profile knows what attention costs: {attention}")
    check(all(row["gbytes"] > 0 for row in ops.values()), f"and every other op: {sorted(name for name, row in ops.items() if row['gbytes'] == 0)}")
    check(0 < out["decode_bandwidth_fraction"] and 0 < out["decode_arithmetic_fraction"] and out["prefill_limit"] is None, "both fractions")
    nearer = max(("memory", out["decode_bandwidth_fraction"]), ("arithmetic", out["decode_arithmetic_fraction"]), key=lambda pair: pair[1])[0]
    check(out["decode_limit"] == nearer, "the nearer limit is named")
    text = run("bench", "smollm2", "-p", 8, "-n", 1, "--runs", 1, "--force").stdout.decode()
    check(text.count("% of the memory limit") + text.count("% of the arithmetic limit") == 2, f"and shown: {text}")
    # Rows below --kv-start are plain; 8 bits with a scale and a bias in 16 a group of 64 are 8.5 a channel.
    plain = bench("--depth", 1000, "--kv", "affine:8", "--kv-start", 3000)["decode_kv_bytes"]
    check(near(plain, 1003.5 * PLAIN_KEY), f"rows below --kv-start are counted plain: {plain}")
    encoded = bench("--depth", 1000, "--kv", "affine:8", "--kv-start", 500)["decode_kv_bytes"]
    check(near(encoded, 1003.5 * PLAIN_KEY * 8.5 / 16), f"rows beyond it encoded: {encoded}")
    two = bench("--depth", 100, "--batch", 2)["decode_kv_bytes"]
    check(near(two, 2 * 103.5 * PLAIN_KEY), f"of all rows: {two}")
    for line in run("doctor").stdout.decode().splitlines():
        if line.startswith("measured"):
            check(len(line.split()[2]) <= 8, f"a limit is rounded: {line}")
    text = run("inspect", "smollm2", "--program", "--context", 64).stdout.decode()
    read = set(re.findall(r"%(\d+)", " ".join(re.findall(r"^ *\d+ \w+\(([^)]*)\)", text, re.MULTILINE))))
    check(read and all(f"%{number}:" in text for number in read), "inspect --program says what every value is that an op reads")


def mlx_caches(at):
    """Prompt cache files of mlx-lm. Those that it wrote itself are those of engine/mlx_prompt_cache_test.cc."""
    goldens = os.path.join(SOURCE, "tests", "data", "kv", "mlx")
    cases = json.loads(read(os.path.join(goldens, "cases.json")))
    model, settings = at("llama"), cases["models"]["llama"]
    run("synth", model, "--family", "llama", "--size", "tiny", "--format", "f32", "--seed", settings["seed"], *[word for key, value in settings["settings"].items() for word in ("--set", f"{key}={value}")])
    cache, store = os.path.join(goldens, "llama-f32.safetensors"), at("store")
    ids, ten, nine = (at(name, json.dumps(cases["tokens"][:count])) for name, count in (("all.json", 16), ("ten.json", 10), ("nine.json", 9)))
    base = ["kv", "import", cache, model, "--activations", "f32", "--prompt-cache-dir", store]

    # What does not fit is refused, and nothing is written.
    expect_exit(2, "kv", "import", cache, "--prompt-cache-dir", store, contains="give MODEL, --name NAME, and --tokens")
    expect_exit(2, *base, "--tokens", ten, contains="give MODEL, --name NAME, and --tokens")
    expect_exit(2, *base, "--name", "x", contains="--prompt-file or --messages")
    expect_exit(2, *base, "--name", " x", "--tokens", ten, contains="no blanks around them")
    expect_exit(2, *base, "--name", "x", "--tokens", nine, contains="has 9 tokens, and the cache holds 10")
    expect_exit(2, *base, "--name", "x", "--tokens", at("far.json", json.dumps([99999] * 10)), contains="99999")
    expect_exit(2, *base, "--name", "x", "--tokens", ten, "--kv", "bf16", contains="layer 0 is f32, which a cache of bf16 cannot hold as it is: use --kv f32 (for this layer alone: --kv-layer 0=f32)")
    expect_exit(2, *base, "--name", "x", "--tokens", ten, "--context", 8, contains="holds 10 tokens, and the context 8")
    # As long as what stays plain: the next token is the first that is encoded.
    coded = ["kv", "import", os.path.join(goldens, "llama-q8-64.safetensors"), *base[3:-1], at("coded"), "--tokens", ten, "--name", "q", "--kv", "affine:8:64:f32"]
    expect_exit(0, *coded, "--kv-start", 10)
    expect_exit(2, "kv", "import", os.path.join(goldens, "gemma-turned.safetensors"), *base[3:], "--name", "x", "--tokens", ten, contains="3 cached layers but model has 2")
    expect_exit(1, "kv", "import", os.path.join(model, "model.safetensors"), *base[3:], "--name", "x", "--tokens", ten, contains="is none of an mlx-lm prompt cache's")
    expect_exit(1, "kv", "import", at("cut.safetensors", read(cache)[:3000]), *base[3:], "--name", "x", "--tokens", ten, contains="cut.safetensors")
    expect_exit(2, "kv", "import", goldens, *base[3:], "--name", "x", "--tokens", ten, contains="is a folder")
    expect_exit(1, "kv", "import", at("nothing.safetensors"), *base[3:], "--name", "x", "--tokens", ten, contains="cannot be opened")
    check(not entries_in(store), "a cache that is refused leaves nothing")

    # Gone on with, it gives mlx-lm's logits; it is a conversation, found by name, and whose it is is said.
    expect_exit(0, *base, "--name", "eval-logits", "--tokens", ten)
    (listed,) = json.loads(run("kv", "ls", "--json", store).stdout)
    shown = json.loads(run("kv", "show", "eval-logits", "--json", "--prompt-cache-dir", store).stdout)
    check(listed["computed_by"] == "mlx-lm" and shown["imported_from"] == "llama-f32.safetensors, mlx-lm from 0.32 on, model mlx-community/tiny", f"whose it is: {listed} {shown}")
    check(b"by mlx-lm" in run("kv", "ls", store).stdout and run("kv", "verify", store).returncode == 0, "kv ls says so, kv verify reads it")
    logits = ["eval", "logits", model, "--tokens", ids, "--activations", "f32"]
    resumed = run(*logits, "--out", at("x.npy"), "--resume", store)
    data = read(at("x.npy"))
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    shape, got = tuple(map(int, re.search(r"'shape': \((\d+), (\d+)\)", data[10:begin].decode()).groups())), struct.unpack(f"<{(len(data) - begin) // 4}f", data[begin:])
    (case,) = [c for c in cases["cases"] if c["name"] == "llama-f32"]
    want = [value for row in case["logits"] for value in row]
    worst = max(abs(a - b) for a, b in zip(got, want))
    check(shape == (6, 48) and worst < 2e-5, f"kvasir goes on as mlx-lm does, within {worst}")
    said = resumed.stderr.decode()
    check(said.count("computed by mlx-lm") == 1 and "llama-f32.safetensors" in said, f"said once: {said}")
    expect_exit(2, *base, "--name", "eval-logits", "--tokens", ten, contains="another conversation 'eval-logits' is in")
    run(*logits, "--out", at("y.npy"), "--resume", store, "--save-at", 12, at("further"))
    (further,) = json.loads(run("kv", "ls", "--json", at("further")).stdout)
    check(further["computed_by"] == "mlx-lm" and further["tokens"] == 12, f"what is computed from it is not called kvasir's: {further}")
    expect_exit(1, *logits[:-1], "bf16", "--out", at("x.npy"), "--resume", store, contains="activations is f32 there and bf16 here")

    # Out again: .kvk files keep whose it is; both forms of mlx-lm's files are read back.
    export = ["kv", "export", "eval-logits"]
    for flag in ("mlx-lm", "mlx-lm-0.31"):
        file = at(flag + ".safetensors")
        expect_exit(0, *export, file, "--format", flag, "--prompt-cache-dir", store)
        expect_exit(0, "kv", "import", file, *base[3:], "--name", flag, "--tokens", ten)
        expect_exit(0, "kv", "export", flag, at("again.safetensors"), "--format", flag, "--overwrite", "--prompt-cache-dir", store)
        check(read(file) == read(at("again.safetensors")), f"{flag}: there and back gives the same file")
    run(*export, at("x.kvk"), "--prompt-cache-dir", store)
    whole = open(at("x.kvk"), "rb").read()
    for flag in ("kvk", "mlx-lm"):
        expect_exit(2, *export, at("x.kvk"), "--format", flag, "--prompt-cache-dir", store, contains="--overwrite replaces it")
        for path in glob.glob(os.path.join(store, "**", "*.kvk"), recursive=True):
            if b"eval-logits" in open(path, "rb").read(65536):
                expect_exit(2, *export, path, "--format", flag, "--overwrite", "--prompt-cache-dir", store, contains="the entry itself")
    check(open(at("x.kvk"), "rb").read() == whole, "an export does not replace what is there")
    expect_exit(2, "kv", "import", at("x.kvk"), model, "--prompt-cache-dir", at("other"), contains="a .kvk file says itself of which model")
    expect_exit(0, "kv", "import", at("x.kvk"), "--prompt-cache-dir", at("other"))
    check(b"computed by mlx-lm" in run(*logits, "--out", at("y.npy"), "--resume", at("other")).stderr and read(at("x.npy")) == read(at("y.npy")), "a .kvk file of it is the same")
    expect_exit(1, *export, os.path.join(at("nowhere"), "x"), "--format", "mlx-lm", "--prompt-cache-dir", store)
    run("eval", "logits", model, "--tokens", ids, "--out", at("y.npy"), "--kv", "rot:4", "--save-at", 10, at("rotated"))
    expect_exit(3, *export, at("r.safetensors"), "--format", "mlx-lm", "--prompt-cache-dir", at("rotated"), contains="mlx-lm has no cache of rot:4")
    check(not os.path.exists(at("r.safetensors")), "and nothing is written")
    run("synth", at("glm"), "--family", "glm", "--size", "tiny", "--format", "f32")
    run("eval", "logits", at("glm"), "--tokens", at("few.json", "[1, 2, 3]"), "--out", at("y.npy"), "--save-at", 2, at("glms"))
    expect_exit(3, *export, at("g.safetensors"), "--format", "mlx-lm", "--prompt-cache-dir", at("glms"), contains="caches of the family 'glm'")
    expect_exit(3, "kv", "import", cache, at("glm"), *base[4:], "--name", "g", "--tokens", ten, contains="caches of the family 'glm'")

    # A conversation: its messages are what chat goes on with.
    chat = ["chat", "smollm2", "--json", "--temperature", 0, "--context", 512, "--max-tokens", 8, "--prompt-cache-dir", store]
    run(*chat, stdin=b"Name a fruit.\n/save fruit\n")
    path = at("fruit.safetensors")
    expect_exit(0, "kv", "export", "fruit", path, "--format", "mlx-lm", "--prompt-cache-dir", store)
    (header,) = [json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]) for data in [read(path)]]
    tokens = json.loads(header["__metadata__"]["0.tokens"])
    fruit = at("fruit.json", json.dumps(tokens))
    held = json.loads(run("kv", "show", "fruit", "--json", "--prompt-cache-dir", store).stdout)["tokens"]
    check(len(tokens) == held and header["__metadata__"]["1.29"] == "KVCache", "the export holds the tokens and a cache a layer")
    (answer,) = lines_of(run(*chat, stdin=b"Name a fruit.\n").stdout)
    messages = [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": answer["text"]}]
    told = run(*chat, "--continue", "fruit", stdin=b"And another.\n")
    smol = ["kv", "import", path, "smollm2", "--context", 512, "--prompt-cache-dir", store]
    wrong = at("wrong.json", json.dumps([{"role": "user", "content": "Name a colour."}]))
    expect_exit(2, *smol, "--name", "back", "--tokens", fruit, "--messages", wrong, contains="these messages are not what the cache holds")
    expect_exit(2, *smol, "--name", "back", "--messages", wrong, contains="give the exact ones with --tokens")
    expect_exit(2, *smol, "--name", "back", "--messages", fruit, contains="expected a JSON list of messages")
    expect_exit(0, *smol, "--name", "raw", "--tokens", fruit)
    expect_exit(2, *chat, "--continue", "raw", stdin=b"And another.\n", contains="was imported without messages")
    expect_exit(0, *smol, "--name", "back", "--tokens", fruit, "--messages", at("messages.json", json.dumps(messages)))
    back = run(*chat, "--continue", "back", stdin=b"And another.\n/save back\n")
    check(back.stderr.count(b"computed by mlx-lm") == 1, f"chat says whose it is {back.stderr[:300]}")
    (a,), (b,) = lines_of(told.stdout), lines_of(back.stdout)
    check(a["text"] == b["text"] and b["reused_tokens"] == a["reused_tokens"] >= len(tokens) - 1, f"and goes on from it {a} {b}")
    listed = {entry["name"]: entry["computed_by"] for entry in json.loads(run("kv", "ls", "--json", store).stdout)}
    check(listed["back"] == "mlx-lm" and listed["fruit"] is None, f"saved again it is still not kvasir's {listed}")

    # Text: what follows is computed, and nothing before it.
    raw = ["generate", "smollm2", "--context", 512, "--temperature", 0, "-n", 4, "--json", "--prompt-cache-dir", store]
    on = json.loads(run(*raw, "--raw", "--continue", "raw", "--prompt", " More:").stdout)
    check(on["cached_tokens"] == len(tokens) and on["prompt_tokens"] > len(tokens), f"generate --raw --continue begins behind it {on}")
    own = json.loads(run(*raw, "--raw", "--continue", "fruit", "--prompt", " More:").stdout)
    check(own["token_ids"] == on["token_ids"], "with the same keys and values come the same tokens")
    expect_exit(2, *raw, "--continue", "raw", "--prompt", "x", contains="give --raw")
    expect_exit(1, *raw, "--raw", "--continue", "none", "--prompt", "x", contains="nothing is saved as 'none'")
    expect_exit(2, *raw, "--prompt", "x", contains="--prompt-cache-disk or --continue")
    expect_exit(2, *raw, "--raw", "--continue", "raw", "--prompt", "x", "--system", "y", contains="--system")


sections = {"bench": benchmark, "pack": packed, "checkpoints": checkpoints, "batch": batched_runs, "kl": kl, "descriptions": descriptions, "chat": conversations, "kv": kv_store, "mlx": mlx_caches, "input": bad_input}
for name in sys.argv[3:] or sections:
    with tempfile.TemporaryDirectory() as scratch:
        sections[name](Folder(scratch))
finish()
