#!/usr/bin/env python3
"""Writes tests/data/chat/found.jsonl: reductions of what chat_template_fuzz.py and real templates once found, with jinja2's results.

    python tools/oracles/chat_template_found.py
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import jinja_reference

VARIABLES = {"xs": [3, 1, 2], "yes": True, "q": "<b>", "d": {"b": 1}, "words": ["b", "A"], "rows": [{"k": "x", "v": 2}, {"v": 0}]}

TEMPLATES = [
    "{% raw %}",
    "{#",
    "x{#",
    "{{ range(10)[::-1] }}|{{ range(10)[::3] }}|{{ range(1, 9, 3)[1:] }}",
    "{{ xs[1:2, 0] }}",
    "{{ '{:{}}'.format('a', 5) }}|{{ '{:{w}.{p}f}'.format(2.5, w=8, p=2) }}",
    "{{ '{.x}'.format(d) }}",
    "{{ '%5%' % () }}",
    "{{ '%5%' % 1 }}",
    "{% autoescape yes %}{{ '<' }}{{ q }}{{ {'a': 1} }}{{ '<'|upper }}{{ 1 < 2 }}{% endautoescape %}{{ '<' }}",
    "{{ dict(nope) }}",
    "{{ [dict(nope), 1] }}",
    "{% for x in xs %}{{ 5 in loop }}{% endfor %}",
    "{% for x in xs %}{{ loop|list }}{% endfor %}",
    "{% for x in xs %}{{ loop|join('|', attribute='k') }}{% endfor %}",
    "{% for x in xs %}{{ cycler(loop).next()|reverse }}{{ loop is iterable }}{% endfor %}",
    "{% set l %}{% for x in xs %}{% break %}{% endfor %}{% endset %}[{{ l }}]",
    "{% for x in xs %}{% filter upper %}a{% continue %}{% endfilter %}{% else %}none{% endfor %}",
    "{{ xs|indent }}",
    "{{ '' % self }}|{{ 'x' % self }}",
    "{{ [] * 99999999999999999999 }}",
    "{{ '' * -99999999999999999999 }}",
    "{{ self is iterable }}{{ self is sequence }}",
    "{{ self|list }}",
    "{% for x in xs %}{{ loop.changed(loop) }}{{ loop.changed([loop]) }}{% endfor %}",
    "{% macro m(n) %}{% for x in xs if x > n recursive %}{{ loop.index }}{{ loop([]) }}{% endfor %}{% endmacro %}{{ m(1) }}{{ m(0) }}",
    "{% if xs %}{{ d }}{% elif nope %}{{ words }}{% else %}{% if rows %}{{ q }}{% endif %}{% endif %}{{ q }}{% set q = 1 %}{{ q }}",
]


def main():
    rows = [json.dumps({"variables": VARIABLES})]
    for template in TEMPLATES:
        result = jinja_reference.render(template, VARIABLES)
        row = {"t": template, "r": result[1]} if result[0] == "r" else {"t": template, "e": result[1]}
        rows.append(json.dumps(row, ensure_ascii=False))
    with open(os.path.join(HERE, "../../tests/data/chat/found.jsonl"), "w") as f:
        f.write("\n".join(rows) + "\n")


main()
