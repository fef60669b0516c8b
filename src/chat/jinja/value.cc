#include "chat/jinja/value.h"

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// Objects whose last reference went away while another one is being destroyed: destroyed in turn, so that a
// chain of a million lists does not recurse a million destructors deep.
thread_local std::vector<Object*>* pending_destruction = nullptr;

constexpr size_t kNotFound = static_cast<size_t>(-1);
constexpr size_t kSmallDict = 8;

}  // namespace

std::string_view name(FailureKind kind) {
  switch (kind) {
    case FailureKind::type_error:
      return "TypeError";
    case FailureKind::value_error:
      return "ValueError";
    case FailureKind::key_error:
      return "KeyError";
    case FailureKind::index_error:
      return "IndexError";
    case FailureKind::attribute_error:
      return "AttributeError";
    case FailureKind::overflow_error:
      return "OverflowError";
    case FailureKind::zero_division:
      return "ZeroDivisionError";
    case FailureKind::runtime_error:
      return "TemplateRuntimeError";
    case FailureKind::undefined_error:
      return "UndefinedError";
    case FailureKind::security_error:
      return "SecurityError";
    case FailureKind::syntax_error:
      return "TemplateSyntaxError";
    case FailureKind::raised:
      return "TemplateError";
    case FailureKind::limit:
      return "LimitError";
    case FailureKind::unsupported:
      return "UnsupportedError";
  }
  return "Error";
}

Object::Object(size_t bytes) {
  charge(bytes);
}

void Object::charge(size_t more) {
  if (Budget* budget = Budget::current(); budget != nullptr) {
    budget->charge(more);
    charged_ += more;
  }
}

Object::~Object() {
  if (charged_ != 0)
    if (Budget* budget = Budget::current(); budget != nullptr) budget->release(charged_);
}

void Object::destroy(Object* object) {
  if (pending_destruction != nullptr) {
    pending_destruction->push_back(object);
    return;
  }
  std::vector<Object*> pending;
  pending_destruction = &pending;
  delete object;
  while (!pending.empty()) {
    Object* next = pending.back();
    pending.pop_back();
    delete next;
  }
  pending_destruction = nullptr;
}

StringObject::StringObject(std::string value)
    : Object(sizeof(StringObject) + value.size()), text(std::move(value)), length(count_code_points(text)) {
  check_string_size(text.size());
}

SequenceObject::SequenceObject(std::vector<Value> values)
    : Object(sizeof(SequenceObject) + values.size() * sizeof(Value)), items(std::move(values)) {
  check_list_size(items.size());
}

Value::Value(std::string text, bool markup) : kind_(Kind::string), markup_(markup) {
  payload_.object = new StringObject(std::move(text));
  retain();
}

Value Value::missing() {
  Value value;
  value.kind_ = Kind::missing;
  return value;
}

Value Value::list(std::vector<Value> items) {
  return Value(Kind::list, new SequenceObject(std::move(items)));
}
Value Value::tuple(std::vector<Value> items) {
  return Value(Kind::tuple, new SequenceObject(std::move(items)));
}
Value Value::dict() {
  return Value(Kind::dict, new DictObject());
}

Value Value::integer(const BigInteger& value) {
  if (const auto small = value.to_int64()) return Value(*small);
  check_integer_bits(value.bits());
  return Value(Kind::big_integer, new BigIntegerObject(value));
}

Value Value::undefined_name(std::string_view name) {
  return Value(Kind::undefined, new UndefinedObject(UndefinedObject::Form::name, Value(), Value(name)));
}

Value Value::undefined_member(Value object, Value key) {
  return Value(Kind::undefined,
               new UndefinedObject(UndefinedObject::Form::member, std::move(object), std::move(key)));
}

Value Value::undefined_hint(std::string hint) {
  return Value(Kind::undefined,
               new UndefinedObject(UndefinedObject::Form::hint, Value(), Value(std::move(hint))));
}

Value Value::undefined_unsafe(std::string_view attribute, const Value& object) {
  Value value = undefined_hint(fmt::format("access to attribute {} of {} object is unsafe.", quote(attribute),
                                           quote(type_name(object))));
  value.undefined().security = true;
  return value;
}

const std::string& Value::text() const {
  return string().text;
}
const std::vector<Value>& Value::items() const {
  return as<SequenceObject>().items;
}
const BigInteger& Value::big() const {
  return as<BigIntegerObject>().value;
}

bool Value::same(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::missing:
    case Kind::none:
      return true;
    case Kind::boolean:
      return payload_.integer == other.payload_.integer;
    // CPython keeps one object for each of these small integers and for each one-character Latin-1 string.
    case Kind::integer:
      return payload_.integer == other.payload_.integer && payload_.integer >= -5 && payload_.integer <= 256;
    case Kind::floating:
      return false;
    case Kind::string:
      if (payload_.object == other.payload_.object && markup_ == other.markup_) return true;
      return !markup_ && !other.markup_ && text() == other.text() && string().length <= 1 &&
             (text().empty() || static_cast<unsigned char>(text()[0]) < 0xC4);
    default:
      return payload_.object == other.payload_.object;
  }
}

Value Value::with_markup(bool markup) const {
  Value value(*this);
  value.markup_ = markup;
  return value;
}

const Value* DictObject::find(const Value& key) const {
  const size_t at = locate(key, hash_value(key));
  return at == kNotFound ? nullptr : &entries[at].second;
}

const Value* DictObject::find(std::string_view key) const {
  if (slots_.empty()) {
    for (const auto& [k, v] : entries)
      if (k.is_string() && k.text() == key) return &v;
    return nullptr;
  }
  const uint64_t hash = hash_text(key);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i] != 0; i = (i + 1) & mask) {
    const size_t entry = slots_[i] - 1;
    if (hashes_[entry] == hash && entries[entry].first.is_string() && entries[entry].first.text() == key)
      return &entries[entry].second;
  }
  return nullptr;
}

size_t DictObject::locate(const Value& key, uint64_t hash) const {
  const auto same_key = [&](const Value& other) { return key.same(other) || equals(key, other); };
  if (slots_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (same_key(entries[i].first)) return i;
    return kNotFound;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i] != 0; i = (i + 1) & mask) {
    const size_t entry = slots_[i] - 1;
    if (hashes_[entry] == hash && same_key(entries[entry].first)) return entry;
  }
  return kNotFound;
}

void DictObject::index_entry(size_t entry, uint64_t hash) {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i] != 0) i = (i + 1) & mask;
  slots_[i] = static_cast<uint32_t>(entry + 1);
}

void DictObject::set(Value key, Value value) {
  const uint64_t hash = hash_value(key);
  if (const size_t at = locate(key, hash); at != kNotFound) {
    entries[at].second = std::move(value);
    return;
  }
  check_list_size(entries.size() + 1);
  charge(sizeof(entries[0]) + 16);
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() <= kSmallDict) return;
  if (hashes_.empty())
    for (size_t i = 0; i + 1 < entries.size(); ++i) hashes_.push_back(hash_value(entries[i].first));
  hashes_.push_back(hash);
  if (slots_.size() < entries.size() * 2) {
    slots_.assign(slots_.empty() ? 32 : slots_.size() * 2, 0);
    for (size_t i = 0; i < entries.size(); ++i) index_entry(i, hashes_[i]);
  } else {
    index_entry(entries.size() - 1, hash);
  }
}

Value DictViewObject::at(size_t index) const {
  const auto& entry = dict.dictionary().entries[index];
  switch (part) {
    case Part::keys:
      return entry.first;
    case Part::values:
      return entry.second;
    case Part::items:
      return Value::tuple({entry.first, entry.second});
  }
  return Value();
}

std::string UndefinedObject::message() const {
  switch (form) {
    case Form::hint:
      return key.text();
    case Form::name:
      return fmt::format("{} is undefined", repr(key));
    case Form::member: {
      const std::string type =
          object.is_none() ? "None" : fmt::format("{} object", qualified_type_name(object));
      if (key.is_string()) return fmt::format("{} has no attribute {}", quote(type), repr(key));
      return fmt::format("{} has no element {}", type, repr(key));
    }
  }
  return {};
}

bool IteratorObject::next(Value& out) {
  if (done_) return false;
  if (running_) value_error("generator already executing");
  if (Budget* budget = Budget::current(); budget != nullptr) {
    budget->iteration();
    budget->check_stack();
  }
  running_ = true;
  try {
    if (!advance(out)) done_ = true;
  } catch (...) {
    running_ = false;
    done_ = true;  // a generator that raised is finished
    throw;
  }
  running_ = false;
  return !done_;
}

std::string CallableObject::repr(Interpreter*) const {
  fail(FailureKind::unsupported, "a {} would be printed with its address, which is not reproducible",
       type_name());
}

ConstantPool::~ConstantPool() {
  // Containers may refer to objects anywhere in the pool: all of them let go before any is deleted.
  for (Object* object : objects_) object->drop_contents();
  for (Object* object : objects_) delete object;
}

void ConstantPool::adopt(const Value& value) {
  Object* object = value.object();
  if (object == nullptr || object->references_ == Object::kImmortal) return;
  object->references_ = Object::kImmortal;
  if (Budget* budget = Budget::current(); budget != nullptr) budget->release(object->charged_);
  object->charged_ = 0;
  objects_.push_back(object);
  if (value.is_sequence()) {
    for (const Value& item : value.items()) adopt(item);
  } else if (value.is(Kind::dict)) {
    for (const auto& [k, v] : value.dictionary().entries) {
      adopt(k);
      adopt(v);
    }
  }
}

}  // namespace kvasir::jinja
