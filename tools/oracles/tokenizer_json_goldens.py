#!/usr/bin/env python3
"""Goldens for tokenizer.json: small tokenizers of every kind, and hashes of what the `tokenizers` package makes of
10,000 strings and of lists of ids.

    python tools/oracles/tokenizer_json_goldens.py tests/data/tokenizer

Writes cases.json: "models" (trained here on the fragments), "cases" (the rest of each tokenizer.json, the name of its
model, and the hashes). Made with tokenizers 0.23.3.
"""
import base64
import json
import pathlib
import struct
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import tokenizer_strings as strings
from tokenizer_patterns import PATTERNS, split

COUNT, BLOCK = 10000, 500

# Patterns without a scanner: alternation, classes with &&, lookbehind, possessive and lazy repeats, anchors, scripts.
OTHER_PATTERNS = {
    "words": r"\w+|[^\w\s]+",
    "lookbehind": r"(?<=[a-z])(?=[A-Z])|\s+",
    "intersection": r"[\p{L}&&[^\p{Lu}]]+",
    "possessive": r"\p{Ll}++|\d{2,3}?|^.|.$",
    "scripts": r"\p{Han}+|\p{Hiragana}+|\p{Katakana}+|\p{Hangul}+|\p{Cyrillic}+|[[:punct:]]+",
    "boundaries": r"\b[^\s\w]?\w+\b|\B.",
    "properties": r"\p{Greek}+|\p{Lower}+|[\p{Emoji}&&[^\d]]+|\p{Arab}+|[[:upper:]]+|[^[:graph:]]+|\p{Word}|\p{Punct}+|[\w&&[^a-z]]+|\W",
    "folding": r"(?i:straße|k|ſ)+|\A.|.\z",
}

# What only the package's own syntax has, how (?i) and (?W) treat classes, and the pattern that matches nothing everywhere.
SYNTAX_PATTERNS = {
    "any": r"\O|\N", "no_newline": r"\N+", "fold_upper": r"(?i)\p{Lu}+", "fold_lower": r"(?i)\p{Ll}+|\P{L}|[\p{Lu}]", "fold_scope": r"(?i:\p{Lu}\w)|\p{Ll}+|(?-i)x",
    "ascii_words": r"(?W:\w)+|\w", "ascii_digits": r"(?D:\d)|\d+", "ascii_spaces": r"(?S:\s)+|(?S)\S+\s", "ascii_posix": r"(?P:[[:alpha:]]+)|(?P:\p{Alpha}\b)|\b.",
    "segments": r"(?y{g}).", "empty": "", "hyphens": r"[\w-]+|[a-b-\d]", "comments": "(?x) [a-z]+ # [ letters\n | (?#[) \\d",
}

ADDED = [
    {"content": "<s>", "special": True, "normalized": False}, {"content": "</s>", "special": True, "normalized": False},
    {"content": "<|user|>", "special": True, "normalized": False, "rstrip": True},
    {"content": "[MASK]", "special": True, "normalized": False, "lstrip": True},
    {"content": "abc", "special": False, "normalized": True}, {"content": "abcd", "special": False, "normalized": False},
    {"content": "the", "special": False, "normalized": True, "single_word": True},
    {"content": "wörld", "special": False, "normalized": True}, {"content": " two  spaces", "special": False, "normalized": False},
    {"content": "HELLO", "special": False, "normalized": True, "single_word": True, "lstrip": True, "rstrip": True},
]
SPECIALS = [token["content"] for token in ADDED] + ["ab abc abcd", "the_ the. bothe", "wo\u0308rld", "HELLO HELLO x", "<s><s>"]


def corpus(fragments):
    lines = fragments["lines"] * 4 + [" ".join(fragments["words"][i::7]) for i in range(7)] + fragments["emoji"]
    return lines + [word + " " + word for word in fragments["words"]]


def train(tokenizer, trainer, texts):
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def make_models(texts):
    made = {}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made["bytes"] = train(tokenizer, trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False), texts)

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    byte_tokens = ["<0x%02X>" % b for b in range(256)]
    made["fallback"] = train(tokenizer, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"] + byte_tokens, limit_alphabet=120, show_progress=False), texts)

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made["suffix"] = train(tokenizer, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], limit_alphabet=100, end_of_word_suffix="</w>", show_progress=False), texts)

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made["prefix"] = train(tokenizer, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], limit_alphabet=100, continuing_subword_prefix="##", show_progress=False), texts)

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    made["unigram"] = train(tokenizer, trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False),
                            [t for t in texts if max(map(ord, t)) < 0x180])
    made["unigram_bytes"] = dict(made["unigram"], byte_fallback=True, vocab=made["unigram"]["vocab"][:400] + [[t, -20.0] for t in byte_tokens])

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made["wordpiece"] = train(tokenizer, trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=200, show_progress=False), texts)

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made["wordlevel"] = train(tokenizer, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False), texts)
    return made


def charsmap(entries):
    """A precompiled map (Darts double array) of {text: replacement}, built by first fit."""
    trie = {}
    texts = b""
    for key, replacement in sorted(entries.items()):
        node = trie
        for b in key.encode():
            node = node.setdefault(b, {})
        node[None] = len(texts)
        texts += replacement.encode() + b"\0"
    units = {0: 0}
    used = {0}
    queue = [(0, trie)]
    while queue:
        at, node = queue.pop(0)
        labels = [0 if b is None else b for b in node]
        base = 1
        while base == at or any((base ^ label) in used for label in labels) or (base ^ at) == 0:
            base += 1
        units[at] |= (base ^ at) << 10 | (0x100 if None in node else 0)
        for b, child in node.items():
            place = base ^ (0 if b is None else b)
            used.add(place)
            if b is None:
                units[place] = 0x80000000 | child
            else:
                units[place] = b
                queue.append((place, child))
    size = (max(units) | 255) + 1
    # Free units must not look like children: their label is one that no byte has.
    array = [units.get(i, 0x80000000) for i in range(size)]
    return base64.b64encode(struct.pack("<I", size * 4) + struct.pack(f"<{size}I", *array) + texts).decode()


CHARSMAP = {"ﬁ": "fi", "ﬂ": "fl", "①": "1", "½": "1/2", "e\u0301": "é", "a\u0300": "à", "\t": " ", "\n": " ", "\u3000": " ", "Ａ": "A",
            "ａ": "a", "㍿": "株式会社", "K": "K", "…": "...", "\u00a0": " ", "\u200b": "", "q\u0307": "Q", "\r": ""}


def sequence(*steps, kind="pretokenizers"):
    return {"type": "Sequence", kind: list(steps)}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme="always", do_split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": do_split}


def case(model, normalizer=None, pre=None, post=None, decoder=None, added=ADDED, **changes):
    return {"model": model, "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post, "decoder": decoder,
            "added": added, "changes": changes}


def bert(**on):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True, **on}


def template(before, after, texts=1):
    pieces = ([{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}] * texts
              + [{"SpecialToken": {"id": t, "type_id": 0}} for t in after])
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [7 + i, 3], "tokens": [t, t]} for i, t in enumerate(before + after)}}


def make_cases():
    bytes_decoder = byte_level()
    spm_decoder = sequence({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                           {"type": "Strip", "content": " ", "start": 1, "stop": 0}, kind="decoders")
    spm_normalizer = sequence({"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, kind="normalizers")
    cases = {}
    for name, patterns in PATTERNS.items():
        pre = byte_level() if name == "gpt2" else sequence(*[split(p) for p in patterns], byte_level(regex=False))
        cases[f"pattern_{name}"] = case("bytes", pre=pre, decoder=bytes_decoder)
    cases["pattern_starcoder"] = case("bytes", pre=sequence({"type": "Digits", "individual_digits": True}, byte_level()), decoder=bytes_decoder)
    cases["bytes_prefix_space"] = case("bytes", pre=byte_level(prefix=True), decoder=bytes_decoder, post=byte_level())
    cases["bytes_ignore_merges"] = case("bytes", pre=sequence(split(PATTERNS["llama3"][0]), byte_level(regex=False)), decoder=bytes_decoder,
                                        post=sequence(byte_level(), template(["<s>"], ["</s>"]), kind="processors"), ignore_merges=True)
    cases["bytes_nfc"] = case("bytes", normalizer={"type": "NFC"}, pre=sequence(split(PATTERNS["qwen2"][0]), byte_level(regex=False)), decoder=bytes_decoder)
    cases["bytes_removed"] = case("bytes", pre=sequence(split(PATTERNS["gpt4o"][0], "Removed", True), byte_level(regex=False)), decoder=bytes_decoder)
    cases["bytes_normalizer"] = case("bytes", normalizer=sequence({"type": "Lowercase"}, {"type": "ByteLevel"}, kind="normalizers"), pre=split("Ġ", "MergedWithNext", kind="String"), decoder=bytes_decoder)
    for name, pattern in OTHER_PATTERNS.items():
        for i, behavior in enumerate(("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")):
            cases[f"regex_{name}_{behavior}"] = case("bytes", pre=sequence(split(pattern, behavior, i % 2 == 0), byte_level(regex=False)), decoder=bytes_decoder)
    for name, pattern in SYNTAX_PATTERNS.items():
        cases[f"syntax_{name}"] = case("bytes", pre=sequence(split(pattern), byte_level(regex=False)), decoder=bytes_decoder)
    cases["fallback_llama"] = case("fallback", normalizer=spm_normalizer, decoder=spm_decoder, post=template(["<s>"], []))
    cases["fallback_gemma"] = case("fallback", normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, pre=split(" ", "MergedWithPrevious", kind="String"),
                                   decoder=sequence({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, kind="decoders"))
    for scheme in ("always", "first", "never"):
        for do_split in (True, False):
            cases[f"metaspace_{scheme}_{do_split}"] = case("fallback", pre=metaspace(scheme, do_split), decoder=metaspace(scheme, do_split))
    cases["metaspace_after_split"] = case("fallback", pre=sequence({"type": "WhitespaceSplit"}, metaspace("first")), decoder=metaspace("first"))
    cases["no_fuse"] = case("fallback", pre=metaspace(), decoder=spm_decoder, fuse_unk=False, byte_fallback=False)
    cases["unknown_dropped"] = case("fallback", pre=metaspace(), decoder=metaspace(), unk_token=None, byte_fallback=False)
    cases["suffix"] = case("suffix", normalizer={"type": "Lowercase"}, pre={"type": "Whitespace"}, decoder={"type": "BPEDecoder", "suffix": "</w>"})
    cases["prefix"] = case("prefix", pre={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    t5 = sequence({"type": "Precompiled", "precompiled_charsmap": charsmap(CHARSMAP)}, {"type": "Strip", "strip_left": False, "strip_right": True},
                  {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, kind="normalizers")
    cases["unigram"] = case("unigram", normalizer=t5, pre=metaspace(), decoder=metaspace(), post=template([], ["</s>"]))
    cases["unigram_whole"] = case("unigram", pre=None, decoder=metaspace("never"))
    cases["unigram_bytes"] = case("unigram_bytes", normalizer={"type": "Nmt"}, pre=metaspace("first"), decoder=spm_decoder)
    bert_post = {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}
    for cleanup in (True, False):
        cases[f"wordpiece_{cleanup}"] = case("wordpiece", normalizer=bert(), pre={"type": "BertPreTokenizer"}, post=bert_post,
                                             decoder={"type": "WordPiece", "prefix": "##", "cleanup": cleanup})
    for name, on in {"cased": {"lowercase": False}, "accents": {"strip_accents": True, "lowercase": False}, "no_accents": {"strip_accents": False},
                     "dirty": {"clean_text": False}, "no_chinese": {"handle_chinese_chars": False}}.items():
        cases[f"bert_{name}"] = case("wordpiece", normalizer=bert(**on), pre={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}, max_input_chars_per_word=20)
    cases["wordlevel"] = case("wordlevel", pre={"type": "Whitespace"})
    cases["wordlevel_roberta"] = case("wordlevel", normalizer={"type": "Strip", "strip_left": True, "strip_right": False}, pre={"type": "WhitespaceSplit"},
                                      post={"type": "RobertaProcessing", "sep": ["x", 5], "cls": ["y", 6], "trim_offsets": True, "add_prefix_space": False})
    cases["ctc"] = case("wordlevel", pre={"type": "CharDelimiterSplit", "delimiter": "e"}, decoder={"type": "CTC", "pad_token": "the", "word_delimiter_token": "of", "cleanup": True})
    for form in ("NFD", "NFKC", "NFKD", "Nmt", "StripAccents"):
        cases[f"normal_{form}"] = case("bytes", normalizer={"type": form}, pre=byte_level(), decoder=bytes_decoder)
    for name, pre in {"digits_runs": {"type": "Digits", "individual_digits": False}, "punctuation": {"type": "Punctuation"},
                      "punctuation_merged": {"type": "Punctuation", "behavior": "MergedWithPrevious"}, "scripts": {"type": "UnicodeScripts"},
                      "fixed": {"type": "FixedLength", "length": 3}, "bert_pre": {"type": "BertPreTokenizer"}, "whitespace": {"type": "Whitespace"}}.items():
        cases[f"pre_{name}"] = case("bytes", pre=sequence(pre, byte_level(regex=False)), decoder=bytes_decoder)
    cases["replace_regex"] = case("bytes", normalizer={"type": "Replace", "pattern": {"Regex": r"\s+|(?<=x)y*"}, "content": " $1"}, pre=byte_level(), decoder=bytes_decoder)
    # Templates without the text, with it twice, and several, of which the second sees the pieces of the first.
    posts = {"none": template(["<s>"], [], texts=0), "twice": template(["<s>"], ["</s>"], texts=2),
             "pair": sequence(template(["<s>"], []), template(["a"], ["b"]), kind="processors"),
             "bert": sequence(template(["<s>"], ["</s>"]), bert_post, kind="processors"),
             "roberta": sequence(template(["<s>"], ["</s>"]), {"type": "RobertaProcessing", "sep": ["x", 5], "cls": ["y", 6], "trim_offsets": True, "add_prefix_space": False},
                                 bert_post, kind="processors")}
    for name, post in posts.items():
        cases[f"post_{name}"] = case("bytes", pre=byte_level(), post=post, decoder=bytes_decoder)
    for name, normalizer in {"right": {"type": "Strip", "strip_left": False, "strip_right": True}, "left": {"type": "Strip", "strip_left": True, "strip_right": False},
                             "removed": sequence({"type": "Replace", "pattern": {"String": "th"}, "content": ""}, {"type": "Replace", "pattern": {"Regex": r"^\s+(?=\S)"}, "content": ""},
                                                 kind="normalizers")}.items():
        cases[f"first_{name}"] = case("fallback", normalizer=normalizer, pre=metaspace("first"), decoder=metaspace("first"), added=[])
    # White space that two tokens would take.
    space = {"special": False, "normalized": False}
    cases["added_spaces"] = case("bytes", pre=byte_level(), decoder=bytes_decoder,
                                 added=[{"content": " ", "lstrip": True, "rstrip": True, **space}, {"content": "  ", "single_word": True, "rstrip": True, **space},
                                        {"content": "\n", "lstrip": True, "rstrip": True, **space}, {"content": "e", "rstrip": True, **space}])
    cases["no_added"] = case("fallback", pre=metaspace(), decoder=metaspace(), added=[])
    return cases


def tokenizer_json(entry, trained):
    model = dict(trained[entry["model"]], **entry["changes"])
    added = [{"id": 100000 + i, "single_word": False, "lstrip": False, "rstrip": False, **token} for i, token in enumerate(entry["added"])]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": entry["normalizer"],
            "pre_tokenizer": entry["pre_tokenizer"], "post_processor": entry["post_processor"], "decoder": entry["decoder"], "model": model}


def hashes(tokenizer, texts, size):
    out, state = [], strings.FNV_OFFSET
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=bool(i & 1)).ids
        state = strings.hash_ids(state, ids)
        if i % 5 == 0:
            state = strings.hash_bytes(state, tokenizer.decode(ids, skip_special_tokens=bool(i & 2)).encode())
        if i % 25 == 0:
            state = strings.hash_bytes(state, tokenizer.decode(strings.some_ids(i, size), skip_special_tokens=False).encode())
        if (i + 1) % BLOCK == 0:
            out.append("%016x" % state)
            state = strings.FNV_OFFSET
    return out


def main(out):
    fragments = json.loads((out / "fragments.json").read_text())
    previous = out / "cases.json"
    # Trained models stay as they are once made: training is not what is tested.
    trained = json.loads(previous.read_text())["models"] if previous.exists() else make_models(corpus(fragments))
    texts = [strings.text(i, fragments, SPECIALS) for i in range(COUNT)]
    cases = make_cases()
    only = sys.argv[2:]
    for name, entry in cases.items():
        if only and name not in only:
            continue
        tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(entry, trained), ensure_ascii=False))
        entry["hashes"] = hashes(tokenizer, texts, tokenizer.get_vocab_size(with_added_tokens=True))
    text = {"specials": SPECIALS, "block": BLOCK, "models": trained, "cases": cases}
    previous.write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")).replace('"cases":', '\n"cases":').replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
