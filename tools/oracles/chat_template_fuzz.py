#!/usr/bin/env python3
"""Random templates, rendered by jinja2 and by kvasir: same text, or both refuse.

    python tools/oracles/chat_template_fuzz.py --binary build/release/src/chat/jinja_differential --seconds 600 --seed 1

Differences are printed; reduce them and add them to chat_template_found.py.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import jinja_reference

VARIABLES = {
    "s": "Hello World", "t": "  pad\t\n", "e": "", "u": "Straße ΑΣ ﬁ ǆ é 日本 😀", "q": "it's \"so\" <b>&amp;</b>", "n": 7, "z": 0, "m": -3, "f": 2.5,
    "big": 123456789012345678, "yes": True, "no": False, "nil": None, "xs": [3, 1, 2], "words": ["b", "A", "c", "a"], "mixed": [1, "a", None, True, 2.5],
    "nested": [[1, 2], [3], []], "d": {"b": 1, "a": [1, {}], "c": "x", "items": 5, "_k": 9}, "empty": {}, "nothing": [],
    "rows": [{"k": "x", "v": 2, "w": {"z": 1}}, {"k": "Y", "v": 1, "w": {"z": 3}}, {"k": "y", "v": 3}, {"v": 0}],
    "lines": "one\ntwo\r\n\nthree", "html": "<p>a &lt; b</p><!-- c --> x",
    "messages": [{"role": "system", "content": "Sys\n"}, {"role": "user", "content": " Hi "}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": {"a": 1, "b": "x"}}}]}],
}

FILTERS = ["abs", "attr('upper')", "batch(2)", "batch(2, 'x')", "capitalize", "center(9)", "count", "default('D')", "default('D', true)", "d(0)", "dictsort", "dictsort(true)",
           "dictsort(by='value')", "e", "escape", "filesizeformat", "first", "float", "float(1.5)", "forceescape", "format(1)", "format('a', 'b')", "groupby('k')", "groupby('v')", "indent",
           "indent(2, true)", "indent('> ', blank=true)", "int", "int(3)", "int(base=16)", "items", "join", "join(', ')", "join('|', attribute='k')", "last", "length", "list", "lower", "map('upper')",
           "map(attribute='k')", "map(attribute='v', default=0)", "map('int')", "map('first')", "map('default', 1)", "max", "min", "max(attribute='v')", "pprint", "reject", "reject('none')", "rejectattr('v')",
           "rejectattr('k', 'eq', 'x')", "replace('a', 'b')", "replace('l', '')", "replace('', '-')", "reverse", "round", "round(1)", "round(-1)", "round(2, 'floor')", "round(1, 'ceil')", "safe", "select", "select('string')", "select('odd')",
           "select('gt', 1)", "selectattr('k')", "selectattr('v', 'gt', 1)", "selectattr('w.z', 'eq', 1)", "slice(2)", "slice(3, 'x')", "sort", "sort(reverse=true)", "sort(attribute='v')", "sort(case_sensitive=true)", "string", "striptags", "sum",
           "sum(attribute='v')", "sum(start=1)", "title", "tojson", "tojson(indent=2)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "trim", "trim('a')", "truncate(5)", "truncate(5, true)", "truncate(6, false, '!', 0)", "unique", "unique(attribute='k')", "upper", "urlencode",
           "wordcount", "wordwrap(5)", "wordwrap(7, false)", "xmlattr", "nope"]
TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "escaped", "lower", "upper", "odd", "even",
         "eq 1", "eq('a')", "ne none", "lt 2", "gt(1)", "ge 2.5", "le 'a'", "in [1, 'a']", "in d", "sameas none", "divisibleby 2", "divisibleby(3)", "filter", "test", "equalto 'x'"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip('d')", "split()", "split('l')", "split(' ', 1)", "rsplit(' ', 1)", "splitlines()", "splitlines(true)", "startswith('H')", "startswith(('a', 'b'))",
           "endswith('d')", "replace('l', 'L')", "replace('l', 'L', 1)", "find('o')", "rfind('o')", "index('o')", "count('l')", "count(1)", "index(1)", "removeprefix('He')", "removesuffix('ld')", "isdigit()", "isalpha()", "isalnum()", "isupper()", "islower()",
           "istitle()", "isspace()", "zfill(9)", "ljust(9, '.')", "rjust(9)", "center(9, '-')", "partition(' ')", "rpartition('o')", "join(['a', 'b'])", "join(words)", "format(1, 2)", "format(a=1)", "casefold()", "swapcase()", "get('a')", "get('zz', 1)", "keys()", "values()", "items()", "copy()", "append(1)",
           "pop()", "update({})", "expandtabs(3)", "encode()", "bit_length()", "is_integer()", "__class__", "nope()", "nope", "items", "upper", "a", "k", "role", "content", "0", "real"]
NAMES = list(VARIABLES) + ["undef", "loop", "ns", "acc", "x", "y", "item", "mac", "caller", "varargs", "kwargs", "self"]
LITERALS = ["1", "0", "2", "-1", "10", "3.5", "1e3", "0.1", "1e16", "true", "false", "none", "'a'", "''", "'Hello'", "'l'", "'<b>'", "'%s-%d'", "'{} {}'", "'é😀'", "[1, 2]", "[]", "{}", "{'a': 1}", "{'k': 'x', 'v': 2}", "(1, 2)", "()", "(1,)", "[[1, 2], [3, 4]]", "['a', 'B']", "99999999999999999999", "'a\\nb'"]


class Generator:
    def __init__(self, rng):
        self.r = rng
        self.in_loop = 0

    def pick(self, xs):
        return self.r.choice(xs)

    def expr(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.18:
            return self.pick(NAMES) if self.r.random() < 0.62 else self.pick(LITERALS)
        d = depth - 1
        if r < 0.40:
            return "%s|%s" % (self.operand(d), self.filter(d))
        if r < 0.50:
            return "%s is %s%s" % (self.operand(d), self.pick(["", "", "not "]), self.pick(TESTS))
        if r < 0.60:
            return "%s.%s" % (self.operand(d), self.pick(METHODS))
        if r < 0.66:
            return "%s[%s]" % (self.operand(d), self.pick([self.expr(d), "0", "-1", "'k'", "'a'", "1:", ":2", "::-1", ":-1", "%s:%s" % (self.expr(0), self.expr(0)), "'items'"]))
        if r < 0.78:
            return "%s %s %s" % (self.operand(d), self.pick(["+", "-", "*", "/", "//", "%", "~", "~", "+"]), self.operand(d))
        if r < 0.85:
            return "%s %s %s" % (self.operand(d), self.pick(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]), self.operand(d))
        if r < 0.91:
            return "%s %s %s" % (self.operand(d), self.pick(["and", "or"]), self.operand(d))
        if r < 0.94:
            return "%s if %s%s" % (self.operand(d), self.operand(d), self.pick([" else " + self.operand(d), ""]))
        if r < 0.955:
            return self.pick(["not ", "-", "+"]) + self.operand(d)
        if r < 0.97:
            return self.pick(["[%s, %s]", "(%s, %s)", "{'a': %s, 'b': %s}", "range(%s, %s)|list", "dict(a=%s, b=%s)", "namespace(a=%s, b=%s).a"]) % (self.expr(d), self.expr(d))
        return self.pick(["mac(%s)", "mac(x=%s)", "range(%s)", "loop.cycle(%s, 1)", "loop.changed(%s)", "loop(%s)", "joiner(%s)()", "cycler(%s).next()", "dict(%s)"]) % self.expr(d)

    def filter(self, depth):
        f = self.pick(FILTERS)
        if self.r.random() < 0.06:
            f = "default(%s)" % self.expr(depth - 1)
        if self.r.random() < 0.3:
            f += "|" + self.pick(["list", "join", "tojson", "string", "length", "first", "sort", "upper", "trim"])
        return f

    def operand(self, depth):
        e = self.expr(depth)
        return "(%s)" % e if (" " in e or "|" in e or self.r.random() < 0.1) and self.r.random() < 0.85 else e

    def text(self):
        return self.pick(["", "a", "\n", "  ", " b\n", "\n  ", "x\n\n", "<i>", "é", "\t", "{", "}", "%", "a\n    "])

    def open(self):
        return self.pick(["{%", "{%", "{%", "{%-", "{%+"])

    def close(self):
        return self.pick(["%}", "%}", "%}", "-%}", "+%}"])

    def tag(self, body):
        return "%s %s %s" % (self.open(), body, self.close())

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.r.randint(1, 3))) + self.text()

    def target(self):
        return self.pick(["x", "y", "item", "acc", "x", "n", "s", "x, y", "(x, y)"])

    def statement(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.42:
            return "%s %s %s" % (self.pick(["{{", "{{", "{{-"]), self.expr(self.r.randint(0, 3)), self.pick(["}}", "}}", "-}}"]))
        d = depth - 1
        e = lambda: self.expr(self.r.randint(0, 2))
        if r < 0.53:
            middle = self.tag("elif " + e()) + self.body(d) if self.r.random() < 0.3 else ""
            other = self.tag("else") + self.body(d) if self.r.random() < 0.4 else ""
            return self.tag("if " + e()) + self.body(d) + middle + other + self.tag("endif")
        if r < 0.68:
            test = " if " + e() if self.r.random() < 0.2 else ""
            recursive = " recursive" if self.r.random() < 0.1 else ""
            seq = self.pick(["xs", "words", "nested", "rows", "messages", "d.items()", "d", "range(3)", "mixed", "d|dictsort", "'abc'", e(), e()])
            head = self.tag("for %s in %s%s%s" % (self.pick(["x", "item", "x, y", "item", "x"]), seq, test, recursive))
            self.in_loop += 1
            inner = self.body(d) + self.pick(["", "", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{% break %}", "{% continue %}", "{% if loop.first %}{% continue %}{% endif %}", "{% set acc = loop.index %}"]) + self.pick(["", self.body(d)])
            self.in_loop -= 1
            other = self.tag("else") + self.body(d) if self.r.random() < 0.2 else ""
            return head + inner + other + self.tag("endfor")
        if r < 0.78:
            return self.tag("set %s = %s" % (self.pick([self.target(), self.target(), "ns.a", "ns"]), self.pick([e(), e(), "namespace(a=1)", "1, 2"])))
        if r < 0.82:
            return self.tag("set %s%s" % (self.pick(["x", "acc"]), self.pick(["", "", " | upper", " | trim | length"]))) + self.body(d) + self.tag("endset")
        if r < 0.87:
            saved, self.in_loop = self.in_loop, 0
            out = self.tag("macro mac(%s)" % self.pick(["", "x", "x, y=2", "x=%s" % e(), "a, b, c=x", "x, caller=none"])) + self.body(d) + self.pick(["", "{{ caller() }}", "{{ varargs }}{{ kwargs }}", "{{ x }}"]) + self.tag("endmacro")
            self.in_loop = saved
            return out
        if r < 0.90:
            return self.tag("call%s mac(%s)" % (self.pick(["", "(y)", "(y, z=1)"]), self.pick(["", "1", e()]))) + self.body(d) + self.tag("endcall")
        if r < 0.92:
            return self.tag("with x = %s, y = %s" % (e(), e())) + self.body(d) + self.tag("endwith")
        if r < 0.94:
            return self.tag("filter " + self.pick(["upper", "trim", "indent(2)", "replace('a', 'b') | title", "escape"])) + self.body(d) + self.tag("endfilter")
        if r < 0.955:
            return self.tag("autoescape " + self.pick(["true", "true", "false", "yes"])) + self.body(d) + self.tag("endautoescape")
        if r < 0.965:
            return self.tag("generation") + self.body(d) + self.tag("endgeneration")
        if r < 0.975:
            return self.tag("block b%d%s" % (self.r.randint(0, 99), self.pick(["", " scoped"]))) + self.body(d) + self.tag("endblock")
        if r < 0.985:
            return self.pick(["{# c #}", "{#- c -#}", "{# c #}\n"])
        if self.in_loop and r < 0.993:
            return self.tag(self.pick(["break", "continue"]))
        return self.tag("raw") + self.pick(["{{ x }}", " {% if %} ", "\n"]) + self.tag("endraw")

    def template(self):
        if self.r.random() < 0.5:  # one expression: most of the longer ones end in an error somewhere
            return "{% set ns = namespace(a=1) %}{% macro mac(x) %}<{{ x }}>{% endmacro %}{% for x in xs %}{{ " + self.expr(self.r.randint(1, 2)) + " }}{% endfor %}"
        out = self.body(self.r.randint(1, 3))
        if self.r.random() < 0.05:  # broken on purpose
            i = self.r.randrange(len(out) + 1)
            out = out[:i] + self.pick(["", "{%", "}}", "(", "'", "\\", "|", "%}"]) + out[i + self.r.randint(0, 4):]
        return out


ADDRESS = re.compile(r" at 0x[0-9a-f]+|\d[+-][\d.e-]+j\)|<filter object|<generator")


def same(expected, got):
    if expected[0] == "r":
        if got.get("r") == expected[1]:
            return True
        # Documented refusals: addresses, complex numbers, jinja2's `missing` marker.
        return got.get("e") == "UnsupportedError"
    return "e" in got


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=15)
    a = parser.parse_args()
    process = subprocess.Popen([a.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    start = time.time()
    count = errors = bad = unsupported = 0
    rng = random.Random(a.seed)
    while time.time() - start < a.seconds:
        template = Generator(rng).template()
        process.stdin.write(json.dumps({"t": template, "v": VARIABLES}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            print("CRASH", repr(template))
            return
        got = json.loads(line)
        expected = jinja_reference.render(template, VARIABLES)
        count += 1
        errors += expected[0] == "e"
        unsupported += expected[0] == "r" and got.get("e") == "UnsupportedError"
        if expected[0] == "r" and ADDRESS.search(expected[1]):
            continue
        if not same(expected, got):
            bad += 1
            if bad <= a.show:
                print(repr(template), "\n  want", repr(expected)[:300], "\n  got ", repr(got)[:300])
    print("seed", a.seed, count, "templates,", errors, "refused by jinja2,", unsupported, "refused on purpose,", bad, "differ")


main()
