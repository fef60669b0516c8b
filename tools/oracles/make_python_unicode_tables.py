#!/usr/bin/env python3
"""Writes src/chat/jinja/unicode_tables.inc: the character properties behind Python's str methods.

The chat template engine must agree with Python on every code point (isalpha, upper, title, repr, isidentifier ...), so
the tables are read out of Python itself. Run with the Python that the template goldens are made with.

    python tools/oracles/make_python_unicode_tables.py > src/chat/jinja/unicode_tables.inc
"""
import sys
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def runs(codes):
    """Greedy runs (first, last, step) over a sorted list, step 1 or 2."""
    out, i = [], 0
    while i < len(codes):
        j, step = i, 1
        if i + 1 < len(codes) and codes[i + 1] - codes[i] == 2:
            step = 2
        while j + 1 < len(codes) and codes[j + 1] - codes[j] == step:
            j += 1
        if step == 2 and j - i < 3:
            step, j = 1, i
        out.append((codes[i], codes[j], step))
        i = j + 1
    return out


def emit_set(name, codes):
    r = runs(codes)
    print(f"constexpr CodePointRun {name}[] = {{")
    emit_rows(["{0x%X, 0x%X, %d}" % x for x in r])


def emit_rows(rows):
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 140:
            print(line)
            line = "   "
        line += " " + row + ","
    print(line)
    print("};")


def emit_map(name, pairs):
    """Runs (first, last, step, delta) of simple one-to-one mappings."""
    out = []
    for code, to in pairs:
        delta = to - code
        if out and out[-1][3] == delta:
            first, last, step, _ = out[-1]
            gap = code - last
            if gap in (1, 2) and (first == last or gap == step):
                out[-1] = (first, code, gap, delta)
                continue
        out.append((code, code, 1, delta))
    print(f"constexpr CodePointShift {name}[] = {{")
    emit_rows(["{0x%X, 0x%X, %d, %d}" % x for x in out])


def emit_special(name, entries):
    print(f"constexpr CodePointExpansion {name}[] = {{")
    emit_rows(["{0x%X, {%s}}" % (c, ", ".join("0x%X" % ord(x) for x in s)) for c, s in entries])


def case_map(name, function):
    simple, special = [], []
    for c in ALL:
        s = function(chr(c))
        if s == chr(c):
            continue
        (simple if len(s) == 1 else special).append((c, ord(s) if len(s) == 1 else s))
    emit_map(f"k{name}Shifts", simple)
    emit_special(f"k{name}Expansions", special)


print("// Made by tools/oracles/make_python_unicode_tables.py from Python %s (Unicode %s). Do not edit."
      % (sys.version.split()[0], unicodedata.unidata_version))
for name, test in [("Alpha", str.isalpha), ("Decimal", str.isdecimal), ("Digit", str.isdigit), ("Numeric", str.isnumeric),
                   ("Space", str.isspace), ("Printable", str.isprintable), ("Lower", str.islower), ("Upper", str.isupper),
                   ("IdentifierStart", str.isidentifier)]:
    emit_set("k" + name, [c for c in ALL if test(chr(c))])
emit_set("kIdentifierContinue", [c for c in ALL if ("a" + chr(c)).isidentifier()])
emit_set("kTitlecase", [c for c in ALL if unicodedata.category(chr(c)) == "Lt"])
# A code point after "AΣ" decides the form of the sigma: that is how Python shows Cased and Case_Ignorable.
ignorable = [c for c in ALL if ("A\u03a3" + chr(c) + "B").lower()[1] == "\u03c3" and ("A\u03a3" + chr(c)).lower()[1] == "\u03c2"]
cased = [c for c in ALL if ("A\u03a3" + chr(c)).lower()[1] == "\u03c3"]
emit_set("kCaseIgnorable", ignorable)
emit_set("kCased", cased)
case_map("Upper", lambda s: s.upper())
case_map("LowerMap", lambda s: s.lower())
case_map("Title", lambda s: s.title())
case_map("Fold", lambda s: s.casefold())
