// Every feature of the template language against jinja2: tests/data/chat/features.jsonl holds what jinja2 (in
// transformers' settings) makes of each template; tools/oracles/chat_template_features.py writes it.
#include "chat/jinja/template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "chat/jinja/filters.h"

namespace kvasir::jinja {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::time_t kNow = 1735787045;  // 2025-01-02 03:04:05 UTC

struct Outcome {
  bool ok = false;
  std::string text;
  FailureKind kind{};
  int line = 0;
};

Outcome run(std::string_view source, const Json& variables = Json::object(), const Limits& limits = {}) {
  Outcome out;
  try {
    out.text = Template::parse(source, limits).render(variables, kNow, limits).text;
    out.ok = true;
  } catch (const TemplateFailure& failure) {
    out.kind = failure.kind;
    out.line = failure.line;
    out.text = failure.message;
  }
  return out;
}

// What jinja2 prints and kvasir refuses: see docs/chat-templates.md, "Differences".
const std::set<std::string>& refused_on_purpose() {
  static const std::set<std::string> templates = {
      "{{ (-7) ** (0.5) }}",  // a complex number
      // A loop variable that no longer exists: jinja2 prints its own marker.
      "{% set ns = namespace() %}{% for i in [1,2] %}{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m "
      "%}{% endfor %}{{ ns.m() }}",
      "{{ d.keys() < {'b':0,'a':0,'c':0,'items':0,'_k':0}.keys() }}",
      "{{ d.keys() <= {'b':0,'a':0,'c':0,'items':0,'_k':0}.keys() }}",
      "{{ d.keys() > {'b':0,'a':0,'c':0,'items':0,'_k':0}.keys() }}",
      "{{ d.keys() >= {'b':0,'a':0,'c':0,'items':0,'_k':0}.keys() }}",
  };
  return templates;
}

void check_file(const std::string& name, size_t at_least) {
  setenv("TZ", "UTC", 1);
  tzset();
  std::ifstream file(std::string(KVASIR_TEST_DATA) + "/chat/" + name);
  ASSERT_TRUE(file.is_open());
  std::string line;
  std::getline(file, line);
  const Json variables = Json::parse(line)["variables"];
  size_t cases = 0;
  while (std::getline(file, line)) {
    const Json row = Json::parse(line);
    const auto source = row["t"].get<std::string>();
    const Outcome got = run(source, row.contains("v") ? row["v"] : variables);
    ++cases;
    if (row.contains("r")) {
      if (refused_on_purpose().contains(source)) {
        EXPECT_FALSE(got.ok) << source;
        continue;
      }
      EXPECT_TRUE(got.ok) << source << "\n  failed: " << got.text;
      EXPECT_EQ(got.text, row["r"].get<std::string>()) << source;
    } else {
      EXPECT_FALSE(got.ok) << source << "\n  printed: " << got.text;
      if (row.contains("l")) {
        EXPECT_EQ(got.kind, FailureKind::syntax_error) << source;
        EXPECT_EQ(got.line, row["l"].get<int>()) << source;
      }
      if (row["e"] == "UndefinedError") {
        EXPECT_EQ(got.kind, FailureKind::undefined_error) << source;
      }
      if (row["e"] == "SecurityError") {
        EXPECT_EQ(got.kind, FailureKind::security_error) << source;
      }
    }
  }
  EXPECT_GE(cases, at_least);
}

TEST(JinjaTemplate, FeaturesRenderAsInJinja2) {
  check_file("features.jsonl", 2500);
}
TEST(JinjaTemplate, CasesFoundByFuzzingRenderAsInJinja2) {
  check_file("found.jsonl", 1);
}

TEST(JinjaTemplate, EveryFilterAndTestOfJinja2Exists) {
  // FILTERS of jinja2 3.1.6 (urlize and random exist and refuse).
  const std::set<std::string_view> expected = {
      "abs",       "attr",       "batch",       "capitalize", "center",  "count",
      "d",         "default",    "dictsort",    "e",          "escape",  "filesizeformat",
      "first",     "float",      "forceescape", "format",     "groupby", "indent",
      "int",       "join",       "last",        "length",     "list",    "lower",
      "items",     "map",        "min",         "max",        "pprint",  "random",
      "reject",    "rejectattr", "replace",     "reverse",    "round",   "safe",
      "select",    "selectattr", "slice",       "sort",       "string",  "striptags",
      "sum",       "title",      "trim",        "truncate",   "unique",  "upper",
      "urlencode", "urlize",     "wordcount",   "wordwrap",   "xmlattr", "tojson"};
  const auto names = filter_names();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()), expected);
  EXPECT_EQ(test_names().size(), 39U);
}

TEST(JinjaTemplate, ErrorsNameLineAndCause) {
  const Json variables = {{"d", {{"a", 1}}}};
  struct {
    const char* source;
    int line;
    const char* message;
  } cases[] = {
      {"a\n{{ x.y }}", 2, "'x' is undefined"},
      {"\n\n{{ d.b.c }}", 3, "'dict object' has no attribute 'b'"},
      {"{% for i in [1] %}\n{{ i + 'a' }}\n{% endfor %}", 2,
       "unsupported operand type(s) for +: 'int' and 'str'"},
      {"{% macro m() %}\n{{ none + 1 }}\n{% endmacro %}\n\n{{ m() }}", 2,
       "unsupported operand type(s) for +: 'NoneType' and 'int'"},
      {"a\n{{ raise_exception('no system role') }}", 2, "no system role"},
      {"a\n{% if %}", 2, "Expected an expression, got 'end of statement block'"},
      {"a\n\n{% nope %}", 3, "Encountered unknown tag 'nope'."},
      {"{{ [].append(1) }}", 1, "access to attribute 'append' of 'list' object is unsafe."},
      {"x\n{% include 'a' %}", 2, "the tag 'include' is not supported in chat templates"},
      {"{{ 'a'|map('upper') }}", 1,
       "a generator would be printed with its address, which is not reproducible (add |list)"},
  };
  for (const auto& c : cases) {
    const Outcome got = run(c.source, variables);
    EXPECT_FALSE(got.ok) << c.source;
    EXPECT_EQ(got.line, c.line) << c.source;
    EXPECT_EQ(got.text, c.message) << c.source;
  }
}

TEST(JinjaTemplate, HostileTemplatesHitALimitQuickly) {
  const std::string deep_parentheses =
      "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}";
  const std::string deep_lists = "{{ " + std::string(100000, '[') + std::string(100000, ']') + " }}";
  std::string deep_ifs, many_nots = "{{ ", long_sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) deep_ifs += "{% if true %}";
  for (int i = 0; i < 100000; ++i) many_nots += "not ";
  for (int i = 0; i < 100000; ++i) long_sum += " + 1";
  const std::string sources[] = {
      deep_parentheses,
      deep_lists,
      deep_ifs,
      many_nots + "1 }}",
      long_sum + " }}",
      "{{ 'a' * 10**9 }}",
      "{{ [0] * 10**9 }}",
      "{{ range(10**9)|list }}",
      "{{ 10**(10**10) }}",
      "{{ (10**5000) * 'a' }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%.1000000000f' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a'|center(10**10) }}",
      "{{ 'a'.zfill(10**10) }}{{ 'a'.ljust(10**12) }}",
      "{{ 'a\\nb'|indent(10**9) }}",
      "{{ [1]|tojson(indent=10**9) }}",
      "{{ 'a\\tb'.expandtabs(10**10) }}",
      "{{ ('a'*100000)|replace('a', 'b'*100000) }}",
      "{{ ([1]*100000)|join('a'*100000) }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(100000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[0]) %}{% for i in range(100000) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + ['a' * 1000000 ~ i] "
      "%}{% endfor %}",
      "{% set ns = namespace(n=3) %}{% for i in range(100000) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
      "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|map('abs') %}{% endfor "
      "%}{{ ns.g|list }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l "
      "}}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l "
      "== [ns.l] }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{% set big = 'ab' * 10000000 %}{% for i in range(100000) %}{{ 'abb' in big }}{{ big.count('ba') }}{% "
      "endfor %}",
      "{% set big = ['ab'] * 5000000 %}{% for i in range(100000) %}{{ 'abb' in big }}{% endfor %}",
      "{% set big = ('ab' * 3000000) %}{% for i in range(100000) %}{{ big|title|length }}{% endfor %}",
      "{% set big = range(100000)|list %}{% for i in range(100000) %}{{ big|sort(reverse=true)|length }}{% "
      "endfor %}",
      "{% set n = 7 ** 20000 %}{% for i in range(100000) %}{{ n * n // 3 > 0 }}{% endfor %}",
      "{{ ''.__class__.__mro__[1].__subclasses__() }}",
      "{{ lipsum.__globals__['os'] }}",
      "{% if 1 %}",
      "{{ 'a",
      "{% raw %} ",
      "{# ",
      "{{ '\xff' }}",
      "{{ '\xed\xa0\x80' }}",
  };
  Limits limits;
  limits.time = std::chrono::milliseconds(300);
  for (const std::string& source : sources) {
    [[maybe_unused]] const std::clock_t start = std::clock();  // of the processor: other work does not count
    const Outcome got = run(source, Json::object(), limits);
    EXPECT_FALSE(got.ok) << source.substr(0, 100) << "\n printed " << got.text.size() << " bytes";
#ifdef __OPTIMIZE__
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0) << source.substr(0, 100);
#endif
  }
}

TEST(JinjaTemplate, SourcesHaveALimit) {
  Limits limits;
  EXPECT_EQ(limits.source_bytes, size_t{4} << 20);
  EXPECT_TRUE(run(std::string(limits.source_bytes, 'x'), Json::object(), limits).ok);
  const Outcome got = run(std::string(limits.source_bytes + 1, 'x'), Json::object(), limits);
  EXPECT_EQ(got.kind, FailureKind::limit);
  EXPECT_NE(got.text.find("4194305 bytes, more than 4194304 (limit)"), std::string::npos) << got.text;
}

TEST(JinjaTemplate, DeepValuesAreDestroyedWithoutRecursion) {
  // A chain of 100,000 lists, made and dropped.
  const Outcome got =
      run("{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}ok");
  EXPECT_TRUE(got.ok) << got.text;
  EXPECT_EQ(got.text, "ok");
}

TEST(JinjaTemplate, RecursionUpToTheLimitWorks) {
  const char* source =
      "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% else %}end{% endif %}{% endmacro %}{{ m(depth) }}";
  EXPECT_EQ(run(source, {{"depth", 150}}).text, "end");
  EXPECT_EQ(run(source, {{"depth", 250}}).kind, FailureKind::limit);
}

TEST(JinjaTemplate, VariablesAreThoseThatComeFromOutside) {
  const std::set<std::string> names =
      Template::parse(
          "{% set x = 1 %}{% for m in messages %}{{ m.a + x }}{% endfor %}{% if f is not defined %}"
          "{% set f = 2 %}{% endif %}{% macro g(a) %}{{ a + outer }}{% endmacro %}{{ f }}")
          .variables();
  EXPECT_TRUE(names.contains("messages") && names.contains("f") && names.contains("outer"));
  for (const char* own : {"x", "m", "g", "a"}) EXPECT_FALSE(names.contains(own)) << own;
}

TEST(JinjaTemplate, GenerationSpansCoverTheBodies) {
  const auto rendered =
      Template::parse("é{% for m in x %}[{% generation %}{{ m }}!{% endgeneration %}]{% endfor %}")
          .render({{"x", {"a", "日本"}}}, kNow);
  EXPECT_EQ(rendered.text, "é[a!][日本!]");
  ASSERT_EQ(rendered.generation.size(), 2U);
  const auto span = [&](size_t i) {
    return rendered.text.substr(rendered.generation[i].begin,
                                rendered.generation[i].end - rendered.generation[i].begin);
  };
  EXPECT_EQ(span(0), "a!");
  EXPECT_EQ(span(1), "日本!");
}

TEST(JinjaTemplate, OneTemplateRendersOnManyThreads) {
  const Template shared = Template::parse(
      "{% macro m(a) %}{{ a|upper ~ ['x', {'k': (1, 2)}] }}{% endmacro %}{% for i in range(n) %}{{ m('é' ~ "
      "i) }}{{ {'a': [1, 'b']}|tojson }}"
      "{% endfor %}");
  const std::string expected = shared.render({{"n", 50}}, kNow).text;
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) equal[t] += shared.render({{"n", 50}}, kNow).text == expected ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 50));
}

}  // namespace
}  // namespace kvasir::jinja
