#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_ranges.inc: Unicode's general categories and a few binary properties as sorted ranges.

The tables are asked of the regex engine inside the `tokenizers` package (Oniguruma 6.9.10, Unicode 16), because
that is the engine whose pieces must be reproduced.

    python tools/oracles/unicode_ranges.py src/tokenizer/unicode_ranges.inc
"""
import sys

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()
PROPERTIES = {"Alphabetic": r"\p{Alphabetic}", "WhiteSpace": r"\s"}

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


def main(path):
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
        flags = members(pattern)
        ranges, c = [], 0
        while c < 0x110000:
            if flags[c]:
                end = c
                while end + 1 < 0x110000 and flags[end + 1]:
                    end += 1
                ranges.append("{0x%X, 0x%X}" % (c, end))
                c = end
            c += 1
        lines += ["", "constexpr CodePointRange k%sRanges[] = {" % name]
        lines += ["    " + ", ".join(ranges[i:i + 6]) + "," for i in range(0, len(ranges), 6)]
        lines.append("};")
    with open(path, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
