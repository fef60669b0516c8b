// The values of the template language: Python's None, bool, int, float, str, list, tuple, dict, range, and
// the few object kinds that templates can hold (undefined values, namespaces, lazy iterators, functions).
//
// A Value is 16 bytes and shares heap objects by a reference count that is not atomic: a render runs on one
// thread. Objects that a parsed template owns (its constants) are immortal, their counts are never touched,
// so that renders on several threads may share them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/big_integer.h"

namespace kvasir::jinja {

class Interpreter;
class Value;

enum class Kind : uint8_t {
  missing,  // internal: an unassigned variable; never seen by an operation
  none,
  boolean,
  integer,
  floating,
  // heap objects from here on
  big_integer,
  undefined,
  string,
  list,
  tuple,
  dict,
  range,
  dict_view,
  iterator,
  name_space,
  slice,     // only as the argument of a folded subscript
  callable,  // functions, methods, macros and other objects with attributes
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

class Object {
 public:
  explicit Object(size_t bytes);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  // Lets go of the values inside (a pool of constants does so before it deletes them).
  virtual void drop_contents() {}

  // Grows the bytes that the memory limit counts for this object.
  void charge(size_t more);

 private:
  friend class Value;
  friend class ConstantPool;
  static constexpr uint32_t kImmortal = 0xFFFFFFFF;
  static void destroy(Object* object);

  uint32_t references_ = 0;
  size_t charged_ = 0;
};

struct StringObject;
struct SequenceObject;
struct DictObject;
struct RangeObject;
struct DictViewObject;
struct UndefinedObject;
class IteratorObject;
class NamespaceObject;
class CallableObject;

class Value {
 public:
  Value() : kind_(Kind::none), markup_(false) { payload_.integer = 0; }
  Value(bool value) : kind_(Kind::boolean), markup_(false) { payload_.integer = value ? 1 : 0; }
  Value(int64_t value) : kind_(Kind::integer), markup_(false) { payload_.integer = value; }
  Value(int value) : Value(static_cast<int64_t>(value)) {}
  Value(double value) : kind_(Kind::floating), markup_(false) { payload_.floating = value; }
  Value(std::string text, bool markup = false);
  Value(std::string_view text, bool markup = false) : Value(std::string(text), markup) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Kind kind, Object* object) : kind_(kind), markup_(false) {
    payload_.object = object;
    retain();
  }
  Value(const Value& other) : kind_(other.kind_), markup_(other.markup_), payload_(other.payload_) {
    retain();
  }
  Value(Value&& other) noexcept : kind_(other.kind_), markup_(other.markup_), payload_(other.payload_) {
    other.kind_ = Kind::none;
  }
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Value() { release(); }

  static Value missing();
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict();
  // Normalised: an integer that fits 64 bits becomes Kind::integer.
  static Value integer(const BigInteger& value);
  // `name` is undefined.
  static Value undefined_name(std::string_view name);
  // The attribute or item `key` of `object` does not exist.
  static Value undefined_member(Value object, Value key);
  static Value undefined_hint(std::string hint);
  // A forbidden attribute: using it is a security error.
  static Value undefined_unsafe(std::string_view attribute, const Value& object);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::missing; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_markup() const { return kind_ == Kind::string && markup_; }
  // bool counts as int, as in Python.
  bool is_integer() const {
    return kind_ == Kind::integer || kind_ == Kind::boolean || kind_ == Kind::big_integer;
  }
  bool is_small_integer() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool is_number() const { return is_integer() || kind_ == Kind::floating; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple; }

  bool boolean() const { return payload_.integer != 0; }
  int64_t small_integer() const { return payload_.integer; }
  double floating() const { return payload_.floating; }
  const std::string& text() const;
  const std::vector<Value>& items() const;
  const BigInteger& big() const;
  StringObject& string() const { return as<StringObject>(); }
  DictObject& dictionary() const { return as<DictObject>(); }
  RangeObject& range() const { return as<RangeObject>(); }
  DictViewObject& view() const { return as<DictViewObject>(); }
  UndefinedObject& undefined() const { return as<UndefinedObject>(); }
  IteratorObject& iterator() const { return as<IteratorObject>(); }
  NamespaceObject& name_space() const { return as<NamespaceObject>(); }
  CallableObject& callable() const { return as<CallableObject>(); }
  Object* object() const { return has_object() ? payload_.object : nullptr; }

  // Same object (or same None, True, False, small number): Python's `is` as far as templates can rely on it.
  bool same(const Value& other) const;
  // The same text, as (un)escaped markup.
  Value with_markup(bool markup) const;

  template <typename T>
  T& as() const {
    return static_cast<T&>(*payload_.object);
  }

 private:
  friend class Object;
  bool has_object() const { return kind_ >= Kind::big_integer; }
  void retain() const {
    if (has_object() && payload_.object->references_ != Object::kImmortal) ++payload_.object->references_;
  }
  void release() {
    if (has_object() && payload_.object->references_ != Object::kImmortal &&
        --payload_.object->references_ == 0)
      Object::destroy(payload_.object);
  }
  void swap(Value& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(markup_, other.markup_);
    std::swap(payload_, other.payload_);
  }

  Kind kind_;
  bool markup_;
  union {
    int64_t integer;
    double floating;
    Object* object;
  } payload_;
};

struct StringObject : Object {
  explicit StringObject(std::string value);
  std::string text;
  int64_t length;  // code points
  bool ascii() const { return length == static_cast<int64_t>(text.size()); }
};

struct SequenceObject : Object {
  explicit SequenceObject(std::vector<Value> values);
  void drop_contents() override { items.clear(); }
  std::vector<Value> items;
  bool is_group = false;  // groupby's pairs have the attributes `grouper` and `list`
};

struct BigIntegerObject : Object {
  explicit BigIntegerObject(BigInteger number)
      : Object(sizeof(*this) + number.bits() / 8), value(std::move(number)) {}
  BigInteger value;
};

// Insertion-ordered; keys are compared and hashed as Python does (1, 1.0 and True are one key).
struct DictObject : Object {
  DictObject() : Object(sizeof(DictObject)) {}
  void drop_contents() override { entries.clear(); }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  std::vector<std::pair<Value, Value>> entries;

 private:
  size_t locate(const Value& key, uint64_t hash) const;  // index into entries, or npos
  void index_entry(size_t entry, uint64_t hash);
  std::vector<uint32_t> slots_;  // open addressing, entry + 1; empty while the dict is small
  std::vector<uint64_t> hashes_;
};

struct RangeObject : Object {
  RangeObject(int64_t first, int64_t end, int64_t stride, int64_t count)
      : Object(sizeof(*this)), start(first), stop(end), step(stride), length(count) {}
  int64_t start, stop, step, length;
};

struct DictViewObject : Object {
  enum class Part { keys, values, items };
  DictViewObject(Value from, Part which) : Object(sizeof(*this)), dict(std::move(from)), part(which) {}
  Value at(size_t index) const;
  Value dict;
  Part part;
};

struct UndefinedObject : Object {
  enum class Form { name, member, hint };
  UndefinedObject(Form why, Value of, Value key_or_hint)
      : Object(sizeof(*this)), form(why), object(std::move(of)), key(std::move(key_or_hint)) {}
  std::string message() const;
  Form form;
  bool security = false;
  Value object, key;
};

struct SliceObject : Object {
  SliceObject(Value a, Value b, Value c)
      : Object(sizeof(*this)), start(std::move(a)), stop(std::move(b)), step(std::move(c)) {}
  Value start, stop, step;
};

// A one-pass iterator (Python's generators and reversed()).
class IteratorObject : public Object {
 public:
  IteratorObject() : Object(128) {}
  // False at the end; stays false.
  bool next(Value& out);
  virtual std::string_view type_name() const { return "generator"; }

 protected:
  virtual bool advance(Value& out) = 0;

 private:
  bool done_ = false;
  bool running_ = false;
};

class NamespaceObject : public Object {
 public:
  NamespaceObject() : Object(sizeof(*this)) {}
  Value attributes = Value::dict();
};

// Anything else: functions, methods, macros, and objects with attributes such as `loop`.
class CallableObject : public Object {
 public:
  explicit CallableObject(size_t bytes = 96) : Object(bytes) {}
  virtual std::string_view type_name() const = 0;
  virtual bool is_callable() const { return true; }
  virtual Value call(Interpreter& interpreter, Arguments& arguments) = 0;
  // False if there is no such attribute.
  virtual bool attribute(Interpreter&, std::string_view, Value&) { return false; }
  virtual bool item(Interpreter&, std::string_view, Value&) { return false; }
  // Python's repr; objects whose repr is an address refuse.
  virtual std::string repr(Interpreter*) const;
  // len(); -1: has none.
  virtual int64_t length(Interpreter*) { return -1; }
  virtual bool iterate_next(Value&) { return false; }
  virtual bool is_iterable() const { return false; }
  // Drops what may refer back to this object, when the render ends.
  virtual void break_cycles() {}
};

// Owns the constants of a parsed template. Their reference counts are never touched again, so that renders on
// several threads may share them; the pool has to outlive every Value that refers to them.
class ConstantPool {
 public:
  ConstantPool() = default;
  ConstantPool(ConstantPool&&) noexcept = default;
  ConstantPool& operator=(ConstantPool&&) = delete;
  ~ConstantPool();
  // The value and everything inside it (text, numbers, lists, tuples and dicts).
  void adopt(const Value& value);

 private:
  std::vector<Object*> objects_;
};

}  // namespace kvasir::jinja
