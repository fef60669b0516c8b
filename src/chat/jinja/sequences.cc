// Lengths, membership, iteration, subscripts and slices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// Adjusted [start, stop) walk of a slice over `size` items (PySlice_AdjustIndices).
struct SliceBounds {
  int64_t start, stop, step, count;
};

SliceBounds slice_bounds(int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto index = [](const Value& value) -> int64_t {
    if (!value.is_integer()) {
      if (value.is_undefined())
        type_error("slice indices must be integers or None or have an __index__ method");
      type_error("slice indices must be integers or None or have an __index__ method");
    }
    return as_index(value, "slice index", true);
  };
  int64_t stride = step.is_none() ? 1 : index(step);
  if (stride == 0) value_error("slice step cannot be zero");
  stride = std::max(stride, -std::numeric_limits<int64_t>::max());
  const auto clamp = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t i = index(value);
    if (i < 0) {
      i = i < -size ? -1 : i + size;
      if (i < 0) i = stride < 0 ? -1 : 0;
    } else if (i >= size) {
      i = stride < 0 ? size - 1 : size;
    }
    return i;
  };
  const int64_t first = clamp(start, stride < 0 ? size - 1 : 0);
  const int64_t last = clamp(stop, stride < 0 ? -1 : size);
  int64_t count = 0;
  if (stride > 0 && first < last) count = (last - first - 1) / stride + 1;
  if (stride < 0 && first > last) count = (first - last - 1) / -stride + 1;
  return {first, last, stride, count};
}

class ReverseIterator : public IteratorObject {
 public:
  explicit ReverseIterator(Value of, int64_t size) : of_(std::move(of)), left_(size) {}
  std::string_view type_name() const override {
    switch (of_.kind()) {
      case Kind::list:
        return "list_reverseiterator";
      case Kind::range:
        return "range_iterator";
      case Kind::dict:
        return "dict_reversekeyiterator";
      default:
        return "reversed";
    }
  }

 protected:
  bool advance(Value& out) override {
    if (left_ == 0) return false;
    --left_;
    const auto i = static_cast<size_t>(left_);
    switch (of_.kind()) {
      case Kind::list:
      case Kind::tuple:
        out = of_.items()[i];
        break;
      case Kind::range:
        out = Value(of_.range().start + left_ * of_.range().step);
        break;
      case Kind::dict:
        out = of_.dictionary().entries[i].first;
        break;
      default:
        out = of_.view().at(i);
        break;
    }
    return true;
  }

 private:
  Value of_;
  int64_t left_;
};

}  // namespace

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!item.is_string())
        type_error("'in <string>' requires string as left operand, not {}", type_name(item));
      count_work(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Kind::list:
    case Kind::tuple:
      count_work(container.items().size() * 16);
      for (const Value& candidate : container.items())
        if (candidate.same(item) || equals(candidate, item)) return true;
      return false;
    case Kind::dict:
      return container.dictionary().find(item) != nullptr;
    case Kind::range: {
      const RangeObject& r = container.range();
      if (!item.is_number()) return false;
      int64_t value = 0;
      if (item.is_small_integer()) {
        value = item.small_integer();
      } else if (item.is(Kind::floating)) {
        if (item.floating() != std::floor(item.floating()) || std::fabs(item.floating()) > 9e18) return false;
        value = static_cast<int64_t>(item.floating());
      } else {
        return false;
      }
      const bool inside =
          r.step > 0 ? value >= r.start && value < r.stop : value <= r.start && value > r.stop;
      return inside && r.length > 0 && (value - r.start) % r.step == 0;
    }
    case Kind::dict_view: {
      const DictViewObject& view = container.view();
      if (view.part == DictViewObject::Part::keys) return view.dict.dictionary().find(item) != nullptr;
      if (view.part == DictViewObject::Part::items) {
        if (!item.is(Kind::tuple) || item.items().size() != 2) return false;
        const Value* found = view.dict.dictionary().find(item.items()[0]);
        return found != nullptr && (found->same(item.items()[1]) || equals(*found, item.items()[1]));
      }
      break;
    }
    default:
      break;
  }
  if (!is_iterable(container)) type_error("argument of type '{}' is not iterable", type_name(container));
  Iteration iteration(container);
  Value candidate;
  while (iteration.next(candidate))
    if (candidate.same(item) || equals(candidate, item)) return true;
  return false;
}

int64_t length_or_negative(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return value.string().length;
    case Kind::list:
    case Kind::tuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::dict:
      return static_cast<int64_t>(value.dictionary().entries.size());
    case Kind::range:
      return value.range().length;
    case Kind::dict_view:
      return static_cast<int64_t>(value.view().dict.dictionary().entries.size());
    case Kind::callable:
      return value.callable().length(nullptr);
    default:
      return -1;
  }
}

int64_t length(const Value& value) {
  const int64_t size = length_or_negative(value);
  if (size < 0) type_error("object of type '{}' has no len()", type_name(value));
  return size;
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::dict_view:
    case Kind::iterator:
      return true;
    case Kind::callable:
      return value.callable().is_iterable();
    default:
      return false;
  }
}

Iteration::Iteration(const Value& value) : value_(value) {
  if (!is_iterable(value)) type_error("'{}' object is not iterable", type_name(value));
  if (value.is(Kind::dict)) counter_ = static_cast<int64_t>(value.dictionary().entries.size());
}

bool Iteration::next(Value& out) {
  switch (value_.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string: {
      const std::string& text = value_.text();
      if (position_ >= text.size()) return false;
      const size_t start = position_;
      next_code_point(text, position_);
      out = Value(text.substr(start, position_ - start));
      return true;
    }
    case Kind::list:
    case Kind::tuple:
      if (position_ >= value_.items().size()) return false;
      out = value_.items()[position_++];
      return true;
    case Kind::dict:
      if (position_ >= value_.dictionary().entries.size()) return false;
      out = value_.dictionary().entries[position_++].first;
      return true;
    case Kind::dict_view:
      if (position_ >= value_.view().dict.dictionary().entries.size()) return false;
      out = value_.view().at(position_++);
      return true;
    case Kind::range:
      if (counter_ >= value_.range().length) return false;
      out = Value(value_.range().start + counter_ * value_.range().step);
      ++counter_;
      return true;
    case Kind::iterator:
      return value_.iterator().next(out);
    default:
      return value_.callable().iterate_next(out);
  }
}

std::vector<Value> to_vector(const Value& value) {
  if (value.is_sequence()) return value.items();
  std::vector<Value> out;
  Iteration iteration(value);
  Value item;
  while (iteration.next(item)) {
    out.push_back(item);
    if ((out.size() & 0xFFF) == 0) {
      check_list_size(out.size());
      count_work(0x1000 * sizeof(Value));
    }
  }
  return out;
}

bool subscript(Interpreter* interpreter, const Value& object, const Value& key, Value& out) {
  if (object.is_undefined()) raise_undefined(object);
  if (key.is(Kind::slice)) {
    if (!object.is_string() && !object.is_sequence() && !object.is(Kind::range)) return false;
    const SliceObject& bounds = key.as<SliceObject>();
    for (const Value* bound : {&bounds.start, &bounds.stop, &bounds.step})
      if (!bound->is_none() && !bound->is_integer()) return false;
    out = slice(object, bounds.start, bounds.stop, bounds.step);
    return true;
  }
  switch (object.kind()) {
    case Kind::dict: {
      if (key.is_sequence() || key.is(Kind::dict)) {
        if (!key.is(Kind::tuple)) return false;
      }
      const Value* found = nullptr;
      if (key.is_string()) {
        found = object.dictionary().find(std::string_view(key.text()));
      } else {
        try {
          found = object.dictionary().find(key);
        } catch (const Failure& failure) {
          if (failure.kind != FailureKind::type_error) throw;
          return false;  // unhashable
        }
      }
      if (found == nullptr) return false;
      out = *found;
      return true;
    }
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::range: {
      if (!key.is_small_integer()) return false;
      const int64_t size = length(object);
      int64_t index = key.small_integer();
      if (index < 0) index += size;
      if (index < 0 || index >= size) return false;
      if (object.is_sequence()) {
        out = object.items()[static_cast<size_t>(index)];
      } else if (object.is(Kind::range)) {
        out = Value(object.range().start + index * object.range().step);
      } else {
        const std::string& text = object.text();
        const size_t start = byte_offset(text, index, object.string().ascii());
        size_t end = start;
        next_code_point(text, end);
        out = Value(text.substr(start, end - start), object.is_markup());
      }
      return true;
    }
    case Kind::callable:
      return key.is_string() && interpreter != nullptr &&
             object.callable().item(*interpreter, key.text(), out);
    default:
      return false;
  }
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) raise_undefined(object);
  if (object.is(Kind::dict)) type_error("unhashable type: 'slice'");
  if (!object.is_string() && !object.is_sequence() && !object.is(Kind::range))
    type_error("'{}' object is not subscriptable", type_name(object));
  const SliceBounds bounds = slice_bounds(length(object), start, stop, step);
  if (object.is_string()) {
    const std::string& text = object.text();
    if (bounds.step == 1) {
      if (bounds.count == 0) return Value(std::string(), object.is_markup());
      const bool ascii = object.string().ascii();
      const size_t from = byte_offset(text, bounds.start, ascii);
      const size_t bytes = byte_offset(std::string_view(text).substr(from), bounds.count, ascii);
      return Value(text.substr(from, bytes), object.is_markup());
    }
    const std::vector<char32_t> codes = decode(text);
    std::string out;
    for (int64_t i = 0; i < bounds.count; ++i)
      append_code_point(out, codes[static_cast<size_t>(bounds.start + i * bounds.step)]);
    return Value(std::move(out), object.is_markup());
  }
  if (object.is(Kind::range)) {
    const RangeObject& r = object.range();
    const int64_t stride = std::clamp<int64_t>(bounds.step, -1'000'000'000, 1'000'000'000);
    return make_range(r.start + bounds.start * r.step, r.start + bounds.stop * r.step, stride * r.step);
  }
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(bounds.count));
  for (int64_t i = 0; i < bounds.count; ++i)
    out.push_back(object.items()[static_cast<size_t>(bounds.start + i * bounds.step)]);
  return object.is(Kind::list) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value reversed(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::dict:
    case Kind::dict_view:
      return Value(Kind::iterator, new ReverseIterator(value, length(value)));
    default:
      type_error("'{}' object is not reversible", type_name(value));
  }
}

Value make_range(int64_t start, int64_t stop, int64_t step) {
  int64_t count = 0;
  __extension__ using Wide = __int128;
  if (step > 0 && start < stop)
    count = static_cast<int64_t>((static_cast<Wide>(stop) - start - 1) / step + 1);
  if (step < 0 && start > stop)
    count = static_cast<int64_t>((static_cast<Wide>(start) - stop - 1) / -static_cast<Wide>(step) + 1);
  return Value(Kind::range, new RangeObject(start, stop, step, count));
}

Value make_range(const Value& start, const Value& stop, const Value& step) {
  constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox
  constexpr int64_t kFar = int64_t{1} << 62;
  int64_t bounds[3] = {};
  int i = 0;
  for (const Value* value : {&start, &stop, &step}) {
    if (value->is_undefined()) type_error("'Undefined' object cannot be interpreted as an integer");
    if (!value->is_integer())
      type_error("'{}' object cannot be interpreted as an integer", type_name(*value));
    bounds[i++] = as_index(*value, "range()", true);
  }
  if (bounds[2] == 0) value_error("range() arg 3 must not be zero");
  Value range = make_range(bounds[0], bounds[1], bounds[2]);
  if (range.range().length > kMaxRange || range.range().length < 0)
    fail(FailureKind::overflow_error, "Range too big. The sandbox blocks ranges larger than {} items.",
         kMaxRange);
  for (const int64_t bound : bounds)
    if (bound > kFar || bound < -kFar)
      fail(FailureKind::unsupported, "range() with bounds beyond 2^62 is not supported");
  return range;
}

}  // namespace kvasir::jinja
