#!/usr/bin/env python3
"""Writes src/chat/jinja/html_entities.inc: HTML's named character references, for the `striptags` filter.

    python tools/oracles/make_html_entities.py > src/chat/jinja/html_entities.inc
"""
from html.entities import html5

print("// Made by tools/oracles/make_html_entities.py from the list in Python's html.entities. Do not edit.")
print("constexpr HtmlEntity kHtmlEntities[] = {")
line = "   "
for name in sorted(html5, key=lambda s: s.encode()):
    text = "".join("\\x%02x" % b for b in html5[name].encode()) if any(ord(c) > 126 or ord(c) < 32 or c in '"\\?' for c in html5[name]) else html5[name]
    row = ' {"%s", "%s"},' % (name, text)
    if len(line) + len(row) > 140:
        print(line)
        line = "   "
    line += row
print(line)
print("};")
