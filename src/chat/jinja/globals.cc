// The functions that every chat template can call.
#include <ctime>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/runtime_objects.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// dict(mapping or pairs, **keywords)
Value make_dict(Arguments& arguments, std::string_view function) {
  if (arguments.positional.size() > 1)
    type_error("{} expected at most 1 argument, got {}", function, arguments.positional.size());
  Value dict = Value::dict();
  DictObject& entries = dict.dictionary();
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_undefined()) raise_undefined(source);
    if (source.is(Kind::dict)) {
      for (const auto& [k, v] : source.dictionary().entries) entries.set(k, v);
    } else {
      Iteration pairs(source);
      Value pair;
      for (int64_t i = 0; pairs.next(pair); ++i) {
        if (!is_iterable(pair))
          type_error("cannot convert dictionary update sequence element #{} to a sequence", i);
        const std::vector<Value> parts = to_vector(pair);
        if (parts.size() != 2)
          value_error("dictionary update sequence element #{} has length {}; 2 is required", i, parts.size());
        entries.set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.keywords) entries.set(Value(key), value);
  return dict;
}

Value call_range(Interpreter&, const Value&, Arguments& arguments) {
  if (!arguments.keywords.empty()) type_error("range() takes no keyword arguments");
  const std::vector<Value>& p = arguments.positional;
  if (p.empty() || p.size() > 3) type_error("range expected 1 to 3 arguments, got {}", p.size());
  if (p.size() == 1) return make_range(Value(0), p[0], Value(1));
  return make_range(p[0], p[1], p.size() == 3 ? p[2] : Value(1));
}

Value call_namespace(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Value attributes = make_dict(arguments, "namespace");
  for (const auto& [key, value] : attributes.dictionary().entries)
    if (key.is_string() && key.text().starts_with('_'))
      fail(FailureKind::security_error,
           "a namespace cannot store attributes that start with an underscore, got {}", repr(key));
  auto* object = new NamespaceObject();
  Value space(Kind::name_space, object);
  object->attributes = attributes;
  interpreter.remember(space);
  return space;
}

class DictFunction : public CallableObject {
 public:
  std::string_view type_name() const override { return "TemplateDict"; }
  Value call(Interpreter&, Arguments& arguments) override { return make_dict(arguments, "dict"); }
  bool attribute(Interpreter& interpreter, std::string_view name, Value& out) override {
    if (name != "fromkeys") return false;
    const MethodEntry* method = nullptr;
    find_attribute(interpreter, Value::dict(), "fromkeys", nullptr, &method);
    out = bind_method(Value::dict(), method);
    return true;
  }
};

class Cycler : public CallableObject {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  bool is_callable() const override { return false; }
  Value call(Interpreter&, Arguments&) override { type_error("'Cycler' object is not callable"); }
  bool attribute(Interpreter&, std::string_view name, Value& out) override {
    if (name == "current") {
      out = items_[position_];
    } else if (name == "items") {
      out = Value::tuple(items_);
    } else if (name == "pos") {
      out = Value(static_cast<int64_t>(position_));
    } else if (name == "next") {
      out = method(+[](Interpreter&, const Value& self, Arguments& a) {
        Parameters("next", a, {}, 0);
        return self.as<Cycler>().advance();
      });
    } else if (name == "reset") {
      out = method(+[](Interpreter&, const Value& self, Arguments& a) {
        Parameters("reset", a, {}, 0);
        self.as<Cycler>().position_ = 0;
        return Value();
      });
    } else {
      return false;
    }
    return true;
  }

 private:
  Value method(FunctionObject::Body body) {
    return Value(Kind::callable,
                 new FunctionObject("cycler method", Value(Kind::callable, this), body, "method"));
  }
  Value advance() {
    Value value = items_[position_];
    position_ = (position_ + 1) % items_.size();
    return value;
  }

  std::vector<Value> items_;
  size_t position_ = 0;
};

class Joiner : public CallableObject {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  Value call(Interpreter&, Arguments& arguments) override {
    Parameters("joiner", arguments, {}, 0);
    if (used_) return separator_;
    used_ = true;
    return Value("");
  }
  bool attribute(Interpreter&, std::string_view name, Value& out) override {
    if (name == "sep")
      out = separator_;
    else if (name == "used")
      out = Value(used_);
    else
      return false;
    return true;
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value call_cycler(Interpreter&, const Value&, Arguments& arguments) {
  if (!arguments.keywords.empty()) type_error("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) fail(FailureKind::runtime_error, "at least one item has to be provided");
  return Value(Kind::callable, new Cycler(arguments.positional));
}

Value call_joiner(Interpreter&, const Value&, Arguments& arguments) {
  const Parameters p("joiner", arguments, {"sep"}, 0);
  return Value(Kind::callable, new Joiner(p.get(0, Value(", "))));
}

Value call_raise_exception(Interpreter&, const Value&, Arguments& arguments) {
  const Parameters p("raise_exception", arguments, {"message"}, 1);
  throw Failure{FailureKind::raised, to_text(p[0])};
}

// strftime of the local time, without a zone (%z and %Z print nothing).
Value call_strftime_now(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Parameters p("strftime_now", arguments, {"format"}, 1);
  if (!p[0].is_string()) type_error("strftime() argument 1 must be str, not {}", type_name(p[0]));
  std::string format;
  const std::string& given = p[0].text();
  if (given.size() > 4096) value_error("the format of strftime_now is longer than 4096 bytes");
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == '%' && i + 1 < given.size()) {
      const char c = given[i + 1];
      ++i;
      if (c == 'z' || c == 'Z') continue;
      if (c == 'f') {
        format += "000000";
        continue;
      }
      format += '%';
      format += c;
      continue;
    }
    format += given[i];
  }
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  if (format.empty()) return Value("");
  std::string out(format.size() * 64 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  if (!is_valid_utf8(out)) value_error("strftime_now made text that is not UTF-8");
  return Value(std::move(out));
}

Value call_lipsum(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported, "lipsum() is random and not supported in chat templates");
}

Value function(std::string_view name, FunctionObject::Body body) {
  return Value(Kind::callable, new FunctionObject(name, Value(), body, "function"));
}

}  // namespace

bool find_global(const std::string& name, Value& out) {
  if (name == "range")
    out = function("range", call_range);
  else if (name == "namespace")
    out = function("namespace", call_namespace);
  else if (name == "raise_exception")
    out = function("raise_exception", call_raise_exception);
  else if (name == "strftime_now")
    out = function("strftime_now", call_strftime_now);
  else if (name == "dict")
    out = Value(Kind::callable, new DictFunction());
  else if (name == "cycler")
    out = function("cycler", call_cycler);
  else if (name == "joiner")
    out = function("joiner", call_joiner);
  else if (name == "lipsum")
    out = function("lipsum", call_lipsum);
  else
    return false;
  return true;
}

}  // namespace kvasir::jinja
