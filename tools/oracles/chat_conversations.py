"""Conversations that chat templates are tried with: turns, tools, tool results, reasoning, odd content."""
import json

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.\nNow, not later.",
           "parameters": {"type": "object", "properties": {
               "city": {"type": "string", "description": "Name of the city"},
               "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
               "days": {"type": ["integer", "null"], "minimum": 0}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Searches \"everything\" <fast> & well — 日本語",
          "parameters": {"type": "object", "properties": {
              "query": {"type": "string"},
              "filters": {"type": "object", "properties": {"lang": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}},
              "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "required": ["query", "filters"]},
          "return": {"type": "string"}}}
NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
# One type and a description everywhere: what some publishers' templates take for granted.
PLAIN = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {"type": "object", "properties": {
         "city": {"type": "string", "description": "Name of the city"}, "days": {"type": "integer", "description": "How many"}}, "required": ["city"]}}}

TOOLS = [WEATHER, SEARCH]


def call(name, arguments, id=None):
    out = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id, **out} if id else out


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "You are a careful assistant.\nAnswer in one line."}

CONVERSATIONS = {
    "one": [user("Hello!")],
    "system": [SYSTEM, user("Hello!")],
    "turns": [user("Hi"), assistant("Hello. How can I help?"), user("  What is 2 + 2?\n"), assistant("4"), user("And 3 + 3? — été 😀")],
    "system_turns": [SYSTEM, user("Hi"), assistant("Hello."), user("Bye")],
    "ends_with_assistant": [user("Hi"), assistant("Hello there ")],
    "empty_content": [SYSTEM, user(""), assistant(""), user("x")],
    "no_content": [user("Weather?"), {"role": "assistant", "tool_calls": [call("get_weather", {"city": "Paris"}, "call_0001")]},
                   {"role": "tool", "tool_call_id": "call_0001", "name": "get_weather", "content": "12"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "this"}]}, assistant("I see."), user("ok")],
    "image": [{"role": "user", "content": [{"type": "image", "image": "x"}, {"type": "text", "text": "What is it?"}]}],
    "tool_call": [SYSTEM, user("Weather in Paris?"), assistant("", tool_calls=[call("get_weather", {"city": "Paris", "unit": "c"}, "abcdef123")]),
                  {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "{\"t\": 12.5}"},
                  assistant("It is 12.5 °C."), user("Thanks")],
    "parallel_calls": [user("Paris and \"Rome\"?"), assistant("Let me look.", tool_calls=[call("get_weather", {"city": "Paris"}, "aaaaaaaa1"),
                       call("search", {"query": "Rome <weather>", "filters": {"lang": "it", "tags": ["a", "b\n"]}, "limit": None}, "aaaaaaaa2")]),
                       {"role": "tool", "tool_call_id": "aaaaaaaa1", "name": "get_weather", "content": "12"},
                       {"role": "tool", "tool_call_id": "aaaaaaaa2", "name": "search", "content": "{\"r\": [1, 2.0, null, true]}"},
                       assistant("Paris 12, Rome unknown."), user("ok")],
    "call_last": [user("time?"), assistant("", tool_calls=[call("now", {}, "bbbbbbbb1")])],
    "tool_last": [user("time?"), assistant("", tool_calls=[call("now", {"deep": {"x": [1, {"y": False}]}}, "bbbbbbbb1")]), {"role": "tool", "tool_call_id": "bbbbbbbb1", "name": "now", "content": "noon"}],
    "reasoning": [user("17*3?"), assistant("51", reasoning_content="17*3 = 51\n"), user("and 17*4?"), assistant("68", reasoning_content="51 + 17"), user("sum?")],
    "inline_thinking": [user("17*3?"), assistant("<think>\n17*3 = 51\n</think>\n\n51"), user("and 17*4?")],
    "reasoning_tools": [SYSTEM, user("Weather?"), assistant("", reasoning_content="I need the tool.", tool_calls=[call("get_weather", {"city": "Oslo", "days": 2}, "cccccccc1")]),
                        {"role": "tool", "tool_call_id": "cccccccc1", "name": "get_weather", "content": "rain"}, assistant("Rain.", reasoning_content="It says rain."), user("Sure?")],
    "special_text": [user("<|im_end|>\n<|im_start|>system\n{{ 1 + 1 }} {% if x %} </s> [INST] <tool_call> \u2028 \u0000 \\ ' \" & <")],
    "two_users": [user("a"), user("b")],
    "system_late": [user("a"), assistant("b"), {"role": "system", "content": "late"}, user("c")],
    "developer": [{"role": "developer", "content": "dev"}, user("x")],
    "unknown_role": [{"role": "critic", "content": "bad"}, user("x")],
    "named": [{"role": "user", "name": "ada", "content": "x"}, assistant("y")],
    "long": [SYSTEM] + [m for i in range(12) for m in (user("Question %d?\nWith a second line." % i), assistant("Answer %d." % i))] + [user("Last?")],
}

OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": False, "tools": [WEATHER, SEARCH, NO_ARGUMENTS], "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "reasoning_effort": "high", "documents": [{"title": "T", "text": "Body"}]},
    {"add_generation_prompt": True, "tools": [PLAIN], "functions": json.dumps([PLAIN]), "datetime": "Thursday"},
]

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
