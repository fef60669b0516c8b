// Filters on sequences. Those that are lazy in jinja2 are lazy here too: they make one-pass iterators.
#include <algorithm>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

// "a.b.0" -> the keys of each step; null: the item itself.
std::vector<Value> attribute_path(const Value& attribute) {
  std::vector<Value> path;
  if (attribute.is_none()) return path;
  if (!attribute.is_string()) return {attribute};
  for (const std::string_view part : split_text(attribute.text(), ".", -1, false)) {
    bool digits = !part.empty();
    for (size_t i = 0; i < part.size();) digits = is_digit(next_code_point(part, i)) && digits;
    if (!digits) {
      path.emplace_back(part);
      continue;
    }
    const auto number = parse_integer(part, 10);
    if (!number) value_error("invalid literal for int() with base 10: {}", quote(part));
    path.push_back(*number);
  }
  return path;
}

Value attribute_path_getter(Interpreter& interpreter, const Value& item, const std::vector<Value>& path,
                            const Value* otherwise) {
  Value value = item;
  for (const Value& key : path) {
    value = interpreter.get_item(value, key);
    if (otherwise != nullptr && !otherwise->is_none() && value.is_undefined()) value = *otherwise;
  }
  return value;
}

namespace {

Value ignore_case(const Value& value) {
  return value.is_string() ? Value(to_lower(value.text()), value.is_markup()) : value;
}

// An order for std::stable_sort that asks only "a < b", as Python's sort does.
std::vector<size_t> sorted_order(const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = reverse ? order.size() - 1 - i : i;
  // Even a list of one incomparable item is fine; two are compared.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (Budget* budget = Budget::current(); budget != nullptr) budget->step();
    return compare(keys[a], keys[b], Order::less);
  });
  if (reverse) std::reverse(order.begin(), order.end());
  return order;
}

Value sort(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = p.flag(1, false);
  std::vector<std::vector<Value>> paths;
  const Value attribute = p.get(2, Value());
  if (attribute.is_string()) {
    for (const std::string_view part : split_text(attribute.text(), ",", -1, false))
      paths.push_back(attribute_path(Value(part)));
  } else {
    paths.push_back(attribute_path(attribute));
  }
  const std::vector<Value> items = to_vector(operand);
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const auto& path : paths) {
      Value part = attribute_path_getter(interpreter, item, path, nullptr);
      parts.push_back(case_sensitive ? std::move(part) : ignore_case(part));
    }
    keys.push_back(Value::list(std::move(parts)));
  }
  if (p.has(0) && !p[0].is_integer())
    type_error("'{}' object cannot be interpreted as an integer", type_name(p[0]));
  std::vector<Value> out;
  out.reserve(items.size());
  for (const size_t i : sorted_order(keys, p.flag(0, false))) out.push_back(items[i]);
  return Value::list(std::move(out));
}

Value dict_sort(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  const Value by = p.get(1, Value("key"));
  const bool by_value = by.is_string() && by.text() == "value";
  if (!by_value && !(by.is_string() && by.text() == "key"))
    fail(FailureKind::runtime_error, "You can only sort by either \"key\" or \"value\"");
  if (operand.is_undefined()) raise_undefined(operand);
  if (!operand.is(Kind::dict))
    fail(FailureKind::attribute_error, "{} has no attribute 'items'", type_name(operand));
  if (p.has(2) && !p[2].is_integer())
    type_error("'{}' object cannot be interpreted as an integer", type_name(p[2]));
  const auto& entries = operand.dictionary().entries;
  std::vector<Value> keys;
  for (const auto& [key, value] : entries) {
    const Value& part = by_value ? value : key;
    keys.push_back(p.flag(0, false) ? part : ignore_case(part));
  }
  std::vector<Value> out;
  for (const size_t i : sorted_order(keys, p.flag(2, false)))
    out.push_back(Value::tuple({entries[i].first, entries[i].second}));
  return Value::list(std::move(out));
}

Value group_by(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const std::vector<Value> path = attribute_path(p[0]);
  const Value otherwise = p.get(1, Value());
  const bool case_sensitive = p.flag(2, false);
  const std::vector<Value> items = to_vector(operand);
  std::vector<Value> keys;
  for (const Value& item : items) {
    const Value key = attribute_path_getter(interpreter, item, path, &otherwise);
    keys.push_back(case_sensitive ? key : ignore_case(key));
  }
  std::vector<Value> groups;
  const std::vector<size_t> order = sorted_order(keys, false);
  for (size_t i = 0; i < order.size();) {
    const Value& key = keys[order[i]];
    std::vector<Value> members;
    size_t end = i;
    while (end < order.size() && (keys[order[end]].same(key) || equals(keys[order[end]], key)))
      members.push_back(items[order[end++]]);
    Value shown = case_sensitive ? key : attribute_path_getter(interpreter, members[0], path, &otherwise);
    const Value group = Value::tuple({std::move(shown), Value::list(std::move(members))});
    group.as<SequenceObject>().is_group = true;
    groups.push_back(group);
    i = end;
  }
  return Value::list(std::move(groups));
}

// ---- lazy ones

class MapIterator : public IteratorObject {
 public:
  MapIterator(Interpreter& interpreter, Value source, Arguments arguments)
      : interpreter_(interpreter), source_(std::move(source)), arguments_(std::move(arguments)) {}

 protected:
  bool advance(Value& out) override {
    if (!started_) {
      started_ = true;
      if (!truth(source_)) return false;
      prepare();
      items_.emplace(source_);
    }
    Value item;
    if (!items_->next(item)) return false;
    if (by_attribute_) {
      out = attribute_path_getter(interpreter_, item, path_, &default_);
    } else {
      Arguments copy = rest_;
      out = interpreter_.apply_filter(name_, item, copy);
    }
    return true;
  }

 private:
  void prepare() {
    if (arguments_.positional.empty()) {
      for (size_t i = 0; i < arguments_.keywords.size(); ++i) {
        if (arguments_.keywords[i].first != "attribute") continue;
        by_attribute_ = true;
        path_ = attribute_path(arguments_.keywords[i].second);
      }
      if (!by_attribute_) fail(FailureKind::runtime_error, "map requires a filter argument");
      for (const auto& [key, value] : arguments_.keywords) {
        if (key == "attribute") continue;
        if (key != "default") fail(FailureKind::runtime_error, "Unexpected keyword argument {}", quote(key));
        default_ = value;
      }
      return;
    }
    name_ = arguments_.positional[0];
    rest_.positional.assign(arguments_.positional.begin() + 1, arguments_.positional.end());
    rest_.keywords = arguments_.keywords;
  }

  Interpreter& interpreter_;
  Value source_;
  Arguments arguments_, rest_;
  std::optional<Iteration> items_;
  bool started_ = false, by_attribute_ = false;
  std::vector<Value> path_;
  Value default_, name_;
};

class SelectIterator : public IteratorObject {
 public:
  SelectIterator(Interpreter& interpreter, Value source, Arguments arguments, bool by_attribute, bool wanted)
      : interpreter_(interpreter),
        source_(std::move(source)),
        arguments_(std::move(arguments)),
        by_attribute_(by_attribute),
        wanted_(wanted) {}

 protected:
  bool advance(Value& out) override {
    if (!started_) {
      started_ = true;
      if (!truth(source_)) return false;
      prepare();
      items_.emplace(source_);
    }
    Value item;
    while (items_->next(item)) {
      if (Budget* budget = Budget::current(); budget != nullptr) budget->iteration();
      const Value tested = by_attribute_ ? attribute_path_getter(interpreter_, item, path_, nullptr) : item;
      bool passes = false;
      if (has_test_) {
        Arguments copy = rest_;
        passes = interpreter_.apply_test(name_, tested, copy);
      } else {
        passes = truth(tested);
      }
      if (passes != wanted_) continue;
      out = item;
      return true;
    }
    return false;
  }

 private:
  void prepare() {
    size_t next = 0;
    if (by_attribute_) {
      if (arguments_.positional.empty())
        fail(FailureKind::runtime_error, "Missing parameter for attribute name");
      path_ = attribute_path(arguments_.positional[next++]);
    }
    if (next >= arguments_.positional.size()) return;
    has_test_ = true;
    name_ = arguments_.positional[next++];
    rest_.positional.assign(arguments_.positional.begin() + static_cast<std::ptrdiff_t>(next),
                            arguments_.positional.end());
    rest_.keywords = arguments_.keywords;
  }

  Interpreter& interpreter_;
  Value source_;
  Arguments arguments_, rest_;
  bool by_attribute_, wanted_;
  bool started_ = false, has_test_ = false;
  std::optional<Iteration> items_;
  std::vector<Value> path_;
  Value name_;
};

Value map(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  return Value(Kind::iterator, new MapIterator(interpreter, operand, arguments));
}

template <bool ByAttribute, bool Wanted>
Value select(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  return Value(Kind::iterator, new SelectIterator(interpreter, operand, arguments, ByAttribute, Wanted));
}

class UniqueIterator : public IteratorObject {
 public:
  UniqueIterator(Interpreter& interpreter, Value source, bool case_sensitive, Value attribute)
      : interpreter_(interpreter),
        source_(std::move(source)),
        case_sensitive_(case_sensitive),
        attribute_(std::move(attribute)) {}

 protected:
  bool advance(Value& out) override {
    if (!items_) {
      path_ = attribute_path(attribute_);
      items_.emplace(source_);
    }
    Value item;
    while (items_->next(item)) {
      Value key = attribute_path_getter(interpreter_, item, path_, nullptr);
      if (!case_sensitive_) key = ignore_case(key);
      if (seen_.dictionary().find(key) != nullptr) continue;
      seen_.dictionary().set(key, Value());
      out = item;
      return true;
    }
    return false;
  }

 private:
  Interpreter& interpreter_;
  Value source_;
  bool case_sensitive_;
  Value attribute_;
  std::vector<Value> path_;
  std::optional<Iteration> items_;
  Value seen_ = Value::dict();
};

Value unique(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("unique", arguments, {"case_sensitive", "attribute"}, 0);
  return Value(Kind::iterator, new UniqueIterator(interpreter, operand, p.flag(0, false), p.get(1, Value())));
}

class BatchIterator : public IteratorObject {
 public:
  BatchIterator(Value source, Value size, Value fill)
      : source_(std::move(source)), size_(std::move(size)), fill_(std::move(fill)) {}

 protected:
  bool advance(Value& out) override {
    if (!items_) items_.emplace(source_);
    std::vector<Value> batch;
    if (!held_.is_missing()) {
      batch.push_back(held_);
      held_ = Value::missing();
    }
    Value item;
    while (items_->next(item)) {
      if (equals(Value(static_cast<int64_t>(batch.size())), size_)) {
        // A size of zero yields an empty batch before the first item.
        held_ = item;
        out = Value::list(std::move(batch));
        return true;
      }
      batch.push_back(item);
    }
    if (batch.empty()) return false;
    if (!fill_.is_none() && compare(Value(static_cast<int64_t>(batch.size())), size_, Order::less)) {
      const int64_t target = as_index(size_, "batch()");
      checked_repeat(1, target, false);
      while (static_cast<int64_t>(batch.size()) < target) batch.push_back(fill_);
    }
    out = Value::list(std::move(batch));
    return true;
  }

 private:
  Value source_, size_, fill_, held_ = Value::missing();
  std::optional<Iteration> items_;
};

Value batch(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("batch", arguments, {"linecount", "fill_with"}, 1);
  return Value(Kind::iterator, new BatchIterator(operand, p[0], p.get(1, Value())));
}

class SliceIterator : public IteratorObject {
 public:
  SliceIterator(Value source, Value slices, Value fill)
      : source_(std::move(source)), slices_(std::move(slices)), fill_(std::move(fill)) {}

 protected:
  bool advance(Value& out) override {
    if (!started_) {
      started_ = true;
      items_ = to_vector(source_);
      if (!slices_.is_integer()) {
        arithmetic(Binary::floor_divide, Value(1), slices_);
        type_error("'{}' object cannot be interpreted as an integer", jinja::type_name(slices_));
      }
      count_ = as_index(slices_, "slice()");
      if (count_ == 0) fail(FailureKind::zero_division, "integer division or modulo by zero");
    }
    if (number_ >= count_) return false;
    const auto size = static_cast<int64_t>(items_.size());
    const int64_t each = size / count_, with_extra = size % count_;
    const int64_t begin = offset_ + number_ * each;
    if (number_ < with_extra) ++offset_;
    const int64_t end = offset_ + (number_ + 1) * each;
    std::vector<Value> part(items_.begin() + begin, items_.begin() + end);
    if (!fill_.is_none() && number_ >= with_extra) part.push_back(fill_);
    ++number_;
    out = Value::list(std::move(part));
    return true;
  }

 private:
  Value source_, slices_, fill_;
  bool started_ = false;
  std::vector<Value> items_;
  int64_t count_ = 0, number_ = 0, offset_ = 0;
};

Value slices(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("slice", arguments, {"slices", "fill_with"}, 1);
  return Value(Kind::iterator, new SliceIterator(operand, p[0], p.get(1, Value())));
}

class ItemsIterator : public IteratorObject {
 public:
  explicit ItemsIterator(Value source) : source_(std::move(source)) {}

 protected:
  bool advance(Value& out) override {
    if (source_.is_undefined()) return false;
    if (!source_.is(Kind::dict)) type_error("Can only get item pairs from a mapping.");
    const auto& entries = source_.dictionary().entries;
    if (next_ >= entries.size()) return false;
    out = Value::tuple({entries[next_].first, entries[next_].second});
    ++next_;
    return true;
  }

 private:
  Value source_;
  size_t next_ = 0;
};

Value items(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("items", arguments, {}, 0);
  return Value(Kind::iterator, new ItemsIterator(operand));
}

// ---- eager ones

Value list(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("list", arguments, {}, 0);
  return Value::list(to_vector(operand));
}

Value count(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("length", arguments, {}, 0);
  return Value(length(operand));
}

Value first(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("first", arguments, {}, 0);
  Iteration iteration(operand);
  Value item;
  return iteration.next(item) ? item : Value::undefined_hint("No first item, sequence was empty.");
}

Value last(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("last", arguments, {}, 0);
  if (operand.is_string() || operand.is_undefined()) {
    // reversed() of text walks it by index; of an undefined value it fails only when it has items, which it
    // has not.
    if (operand.is_undefined() || operand.text().empty())
      return Value::undefined_hint("No last item, sequence was empty.");
    return slice(operand, Value(-1), Value(), Value()).with_markup(operand.is_markup());
  }
  const Value backwards = reversed(operand);
  Value item;
  return backwards.iterator().next(item) ? item : Value::undefined_hint("No last item, sequence was empty.");
}

Value reverse(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("reverse", arguments, {}, 0);
  if (operand.is_string()) return slice(operand, Value(), Value(), Value(-1));
  switch (operand.kind()) {
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::dict:
    case Kind::dict_view:
      return reversed(operand);
    default:
      break;
  }
  if (operand.is_undefined()) return reversed(Value::list({}));
  if (!is_iterable(operand)) fail(FailureKind::runtime_error, "argument must be iterable");
  std::vector<Value> out = to_vector(operand);
  std::reverse(out.begin(), out.end());
  return Value::list(std::move(out));
}

template <bool Largest>
Value extreme(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p(Largest ? "max" : "min", arguments, {"case_sensitive", "attribute"}, 0);
  const std::vector<Value> path = attribute_path(p.get(1, Value()));
  Iteration iteration(operand);
  Value item, best, best_key;
  bool found = false;
  while (iteration.next(item)) {
    Value key = attribute_path_getter(interpreter, item, path, nullptr);
    if (!p.flag(0, false)) key = ignore_case(key);
    if (found && !(Largest ? compare(key, best_key, Order::greater) : compare(key, best_key, Order::less)))
      continue;
    found = true;
    best = item;
    best_key = std::move(key);
  }
  return found ? best : Value::undefined_hint("No aggregated item, sequence was empty.");
}

Value sum(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("sum", arguments, {"attribute", "start"}, 0);
  Value total = p.get(1, Value(0));
  const std::vector<Value> path = attribute_path(p.get(0, Value()));
  Iteration iteration(operand);
  if (total.is_string()) type_error("sum() can't sum strings [use ''.join(seq) instead]");
  Value item;
  while (iteration.next(item))
    total = arithmetic(Binary::add, total, attribute_path_getter(interpreter, item, path, nullptr));
  return total;
}

Value random(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported,
       "the filter 'random' is not reproducible and not supported in chat templates");
}

// Attributes only, never items.
Value attr(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("attr", arguments, {"name"}, 1);
  if (!p[0].is_string()) type_error("attribute name must be string, not '{}'", type_name(p[0]));
  const MethodEntry* method = nullptr;
  Value out;
  const AttributeKind kind = find_attribute(interpreter, operand, p[0].text(), &out, &method);
  if (kind == AttributeKind::none) return Value::undefined_member(operand, p[0]);
  return interpreter.get_attribute(operand, p[0]);
}

}  // namespace

void add_sequence_filters(std::vector<FilterEntry>& table) {
  table.insert(table.end(), {
                                {"sort", false, sort},
                                {"dictsort", false, dict_sort},
                                {"groupby", false, group_by},
                                {"map", true, map},
                                {"select", true, select<false, true>},
                                {"reject", true, select<false, false>},
                                {"selectattr", true, select<true, true>},
                                {"rejectattr", true, select<true, false>},
                                {"unique", false, unique},
                                {"batch", false, batch},
                                {"slice", false, slices},
                                {"items", false, items},
                                {"list", false, list},
                                {"length", false, count},
                                {"count", false, count},
                                {"first", false, first},
                                {"last", false, last},
                                {"reverse", false, reverse},
                                {"min", false, extreme<false>},
                                {"max", false, extreme<true>},
                                {"sum", false, sum},
                                {"random", true, random},
                                {"attr", false, attr},
                            });
}

}  // namespace kvasir::jinja
