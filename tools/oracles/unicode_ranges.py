#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_ranges.inc: Unicode's general categories and a few binary properties as sorted ranges;
src/tokenizer/component_ranges.inc: the characters that single components of tokenizer.json treat specially; and
src/tokenizer/named_sets.inc: scripts and binary properties by name.

The first tables are asked of the regex engine inside the `tokenizers` package (Oniguruma 6.9.10, Unicode 16), because
that is the engine whose pieces must be reproduced. The components use other tables there, of other Unicode versions
(9 for normal forms and combining marks, 8 for punctuation, 17 for numbers and lower case), so each is asked by itself.
Needs libutf8proc, with which the lower-case and normal forms are compared: only the differences are written; and
fonttools, for the names of scripts. '-' in the place of a file leaves it out.

    python tools/oracles/unicode_ranges.py src/tokenizer/unicode_ranges.inc src/tokenizer/component_ranges.inc src/tokenizer/named_sets.inc
"""
import ctypes
import sys

from fontTools.unicodedata import Scripts
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()
PROPERTIES = {"Alphabetic": r"\p{Alphabetic}", "WhiteSpace": r"\s"}

# Short and long names, as regexes may give them.
NAMED_SETS = [("Upper", "Uppercase"), ("Lower", "Lowercase"), ("Cased", "Cased"), ("Emoji", "Emoji"), ("EPres", "Emoji_Presentation"),
              ("EMod", "Emoji_Modifier"), ("EBase", "Emoji_Modifier_Base"), ("EComp", "Emoji_Component"),
              ("ExtPict", "Extended_Pictographic"), ("Ideo", "Ideographic"), ("Graph", "Graph"), ("Print", "Print")]

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, CODE_POINTS))


def members(pattern):
    """Code points that match, as a bytearray of flags over the whole range."""
    flags = bytearray(b"\1" * 0x110000)
    for c in range(0xD800, 0xE000):
        flags[c] = 0
    kept = pre_tokenizers.Split(Regex(pattern), behavior="removed").pre_tokenize_str(TEXT)
    for _, (begin, end) in kept:
        for i in range(begin, end):
            flags[CODE_POINTS[i]] = 0
    return flags


def range_table(name, members):
    members = sorted(members)
    ranges = []
    for c in members:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    texts = ["{0x%X, 0x%X}" % (a, b) for a, b in ranges]
    return (["", "constexpr CodePointRange k%sRanges[] = {" % name]
            + ["    " + ", ".join(texts[i:i + 6]) + "," for i in range(0, len(texts), 6)] + ["};"])


def write(path, lines):
    with open(path, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


def main_tables(path):
    category = ["Cs"] * 0x110000
    for name in CATEGORIES:
        for c, flag in enumerate(members(r"\p{%s}" % name)):
            if flag:
                assert category[c] == "Cs", hex(c)
                category[c] = name
    lines = ["// Made by tools/oracles/unicode_ranges.py: Unicode 16 as the `tokenizers` package sees it. Do not edit.", ""]
    lines.append("// First code point of each run of one general category.")
    lines.append("constexpr CategoryRun kCategoryRuns[] = {")
    row, previous = [], None
    for c in range(0x110000):
        if category[c] != previous:
            previous = category[c]
            row.append("{0x%X, Category::%s}" % (c, previous))
    lines += ["    " + ", ".join(row[i:i + 5]) + "," for i in range(0, len(row), 5)]
    lines.append("};")
    for name, pattern in PROPERTIES.items():
        lines += range_table(name, [c for c, flag in enumerate(members(pattern)) if flag])
    write(path, lines)


def vanishing(normalizer):
    return [c for c in CODE_POINTS if normalizer.normalize_str("x" + chr(c) + "y") == "xy"]


def split_off(pre_tokenizer):
    return [c for c in CODE_POINTS if len(pre_tokenizer.pre_tokenize_str("x" + chr(c) + "y")) == 3]


def bert(**on):
    return normalizers.BertNormalizer(**{"clean_text": False, "handle_chinese_chars": False, "strip_accents": False,
                                         "lowercase": False, **on})


class Utf8proc:
    STABLE, COMPAT, COMPOSE, DECOMPOSE = 1 << 1, 1 << 2, 1 << 3, 1 << 4

    def __init__(self):
        self.library = ctypes.CDLL("libutf8proc.so.2")
        self.library.utf8proc_map.restype = ctypes.c_ssize_t

    def map(self, text, options):
        data, out = text.encode(), ctypes.c_char_p()
        size = self.library.utf8proc_map(data, ctypes.c_ssize_t(len(data)), ctypes.byref(out), options)
        return ctypes.string_at(out, size).decode()


def inert(library):
    """Characters that utf8proc decomposes, orders or composes, and the package's older tables do not know."""
    nfkd, nfd = normalizers.NFKD(), normalizers.NFD()
    found = set()
    for c in CODE_POINTS:
        for normalizer, options, text in (
                (nfkd, library.STABLE | library.COMPAT | library.DECOMPOSE, chr(c)),
                # A character with a combining class changes places with U+0334 (class 1) or U+0345 (class 240).
                (nfd, library.STABLE | library.DECOMPOSE, "a" + chr(c) + "\u0334"),
                (nfd, library.STABLE | library.DECOMPOSE, "a\u0345" + chr(c))):
            if normalizer.normalize_str(text) != library.map(text, options):
                found.add(c)
    return found


def scripts():
    """(first, last, number) of UnicodeScripts' classes; 0: any script."""
    split = pre_tokenizers.UnicodeScripts()
    together = lambda a, b: len(split.pre_tokenize_str(a + b)) == 1
    number = [0] * 0x110000
    representatives = []
    previous = None
    for c in CODE_POINTS:
        if together("a", chr(c)) and together("\u0431", chr(c)):
            continue  # goes with anything
        if previous is not None and together(chr(previous), chr(c)):
            number[c] = number[previous]
        else:
            for n, r in enumerate(representatives):
                if together(r, chr(c)):
                    number[c] = n + 1
                    break
            else:
                representatives.append(chr(c))
                number[c] = len(representatives)
        previous = c
    runs, c = [], 0
    while c < 0x110000:
        end = c
        while end + 1 < 0x110000 and number[end + 1] == number[c]:
            end += 1
        if number[c]:
            runs.append("{0x%X, 0x%X, %d}" % (c, end, number[c]))
        c = end + 1
    return runs


def component_tables(path):
    library = Utf8proc()
    lines = ["// Made by tools/oracles/unicode_ranges.py from the `tokenizers` package. Do not edit."]
    lines += ["", "// BertNormalizer: what clean_text and strip_accents remove."]
    lines += range_table("BertRemoved", vanishing(bert(clean_text=True)))
    lines += range_table("BertAccent", vanishing(bert(strip_accents=True)))
    lines += ["", "// StripAccents."]
    lines += range_table("Accent", vanishing(normalizers.StripAccents()))
    lines += ["", "// Punctuation, BertPreTokenizer."]
    lines += range_table("Punctuation", split_off(pre_tokenizers.Punctuation()))
    lines += ["", "// Digits."]
    lines += range_table("Numeric", split_off(pre_tokenizers.Digits(individual_digits=True)))
    lines += ["", "// Characters without normal forms."]
    lines += range_table("Inert", inert(library))

    lower = normalizers.Lowercase()
    library.library.utf8proc_tolower.restype = ctypes.c_int32
    rows = []
    for c in CODE_POINTS:
        text = lower.normalize_str(chr(c))
        if text != chr(library.library.utf8proc_tolower(c)):
            if len(text) == 1:
                rows.append("{0x%X, 0x%X}" % (c, ord(text)))
            else:
                assert (c, text) == (0x130, "i\u0307"), hex(c)
    lines += ["", "// Lower case where utf8proc has none (U+0130, the only one that becomes two characters, is handled apart).",
              "constexpr CodePointPair kLowercase[] = {"]
    lines += ["    " + ", ".join(rows[i:i + 6]) + "," for i in range(0, len(rows), 6)] + ["};"]

    rows = scripts()
    lines += ["", "// UnicodeScripts: runs of one script (Hiragana and Katakana count as Han); others go with any.",
              "constexpr ScriptRun kScriptRuns[] = {"]
    lines += ["    " + ", ".join(rows[i:i + 5]) + "," for i in range(0, len(rows), 5)] + ["};"]
    write(path, lines)


def known(name):
    try:
        Regex(r"\p{%s}" % name)
        return True
    except Exception:
        return False


def named_sets(path):
    plain = lambda name: name.lower().replace("_", "")
    names = sorted((code, name) for code, name in Scripts.NAMES.items() if known(code) and known(name))
    assert all(known(alias) for pair in NAMED_SETS for alias in pair)
    ranges, sets = [], []
    for short, name in names + NAMED_SETS:
        flags, begin, c = members(r"\p{%s}" % name), len(ranges), 0
        while c < 0x110000:
            end = c
            while end + 1 < 0x110000 and flags[end + 1] == flags[c]:
                end += 1
            if flags[c]:
                ranges.append("{0x%X, 0x%X}" % (c, end))
            c = end + 1
        sets.append('{"%s", "%s", %d, %d}' % (plain(short), plain(name), begin, len(ranges)))
    lines = ["// Made by tools/oracles/unicode_ranges.py: Unicode 16 as the `tokenizers` package sees it. Do not edit.", "",
             "constexpr CodePointRange kNamedRanges[] = {"]
    lines += ["    " + ", ".join(ranges[i:i + 6]) + "," for i in range(0, len(ranges), 6)] + ["};", ""]
    lines += ["// Two names of each set, and where its ranges begin and end.", "constexpr NamedSet kNamedSets[] = {"]
    lines += ["    " + ", ".join(sets[i:i + 3]) + "," for i in range(0, len(sets), 3)] + ["};"]
    write(path, lines)


if __name__ == "__main__":
    for make, out in zip((main_tables, component_tables, named_sets), sys.argv[1:], strict=True):
        if out != "-":
            make(out)
