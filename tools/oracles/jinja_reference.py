"""jinja2 with exactly the settings in which transformers renders chat templates, at a fixed time.

Used by the scripts beside it. `render(template, variables)` returns ("r", text) or ("e", exception class, line, message).
"""
import copy
import datetime as real_datetime
import functools

import jinja2
import transformers.utils.chat_template_utils as utils

NOW = real_datetime.datetime(2025, 1, 2, 3, 4, 5)
NOW_UNIX = 1735787045  # the same moment in UTC


class FixedDatetime(real_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = FixedDatetime


@functools.lru_cache(maxsize=1)  # one template, many conversations
def compile_template(template):
    return utils._compile_jinja_template.__wrapped__(template)


def line_of(exc):
    if isinstance(exc, jinja2.TemplateSyntaxError):
        return exc.lineno
    line, tb = None, exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == "<template>":
            line = tb.tb_lineno
        tb = tb.tb_next
    return line


def render(template, variables):
    # A deep copy: `some_list|indent` appends to the list before it fails.
    try:
        return ("r", compile_template(template).render(**copy.deepcopy(variables)))
    except RecursionError:
        return ("e", "RecursionError", None, "")
    except Exception as exc:  # every exception is a refusal
        return ("e", type(exc).__name__, line_of(exc), str(exc))
