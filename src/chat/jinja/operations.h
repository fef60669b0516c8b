// Python's built-in operations on values. All throw Failure; none needs an interpreter, except those that may
// run template code (lazy iterators hold their own).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace kvasir::jinja {

// type(x).__name__, and with the module where Python's error messages have it.
std::string_view type_name(const Value& value);
std::string qualified_type_name(const Value& value);

// The error of using an undefined value.
[[noreturn]] void raise_undefined(const Value& value);

bool truth(const Value& value);
// ==
bool equals(const Value& a, const Value& b);
enum class Order { less, less_equal, greater, greater_equal };
bool compare(const Value& a, const Value& b, Order order);
// Throws for what Python cannot hash.
uint64_t hash_value(const Value& value);
uint64_t hash_text(std::string_view text);

// str() and repr()
std::string to_text(const Value& value);
std::string repr(const Value& value);
// str() as a value; a string is returned as it is.
Value soft_text(const Value& value);
std::string float_repr(double value);
// The decimal text of an int; Python refuses more than 4300 digits.
std::string integer_text(const Value& value);

// A JSON-independent number view of a bool, int or float.
double as_double(const Value& value);
BigInteger as_big(const Value& value);
// An index: bool or int that fits 64 bits (big ones are clamped when `clamp`).
int64_t as_index(const Value& value, std::string_view what, bool clamp = false);

enum class Binary { add, subtract, multiply, divide, floor_divide, modulo, power };
Value arithmetic(Binary operation, const Value& a, const Value& b);
Value negate(const Value& value);
Value positive(const Value& value);

// x in container
bool contains(const Value& container, const Value& item);
// len()
int64_t length(const Value& value);
// -1 where len() would fail
int64_t length_or_negative(const Value& value);

// What `for` walks over. Keeps the value alive.
class Iteration {
 public:
  explicit Iteration(const Value& value);
  bool next(Value& out);

 private:
  Value value_;
  size_t position_ = 0;
  int64_t counter_ = 0;
};
bool is_iterable(const Value& value);
// list(value)
std::vector<Value> to_vector(const Value& value);

// obj[key] without the attribute fallback: false if Python would raise TypeError or LookupError.
bool subscript(Interpreter* interpreter, const Value& object, const Value& key, Value& out);
// obj[a:b:c]
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);

// The lazy reverse of a list, range, dict or view.
Value reversed(const Value& value);

// HTML escaping: text to markup; markup is returned unchanged.
Value escape(const Value& value);
std::string escape_text(std::string_view text);

Value make_range(const Value& start, const Value& stop, const Value& step);
Value make_range(int64_t start, int64_t stop, int64_t step);

}  // namespace kvasir::jinja
