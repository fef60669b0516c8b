// The exception that carries a template's error from deep inside an operation to the interpreter, which adds
// the line.
//
// The types are Python's, because templates can observe them: the `int` filter swallows a TypeError but not
// an OverflowError, and a subscript swallows a KeyError.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace kvasir::jinja {

enum class FailureKind {
  type_error,
  value_error,
  key_error,
  index_error,
  attribute_error,
  overflow_error,
  zero_division,
  runtime_error,  // errors of the template language itself
  undefined_error,
  security_error,
  syntax_error,
  raised,       // the template called raise_exception
  limit,        // a sandbox limit
  unsupported,  // legal for jinja2, refused here (an address or a random number would be printed)
};

// The name that an error message shows, e.g. "TypeError".
std::string_view name(FailureKind kind);

struct Failure {
  FailureKind kind;
  std::string message;
};

template <typename... Args>
[[noreturn]] void fail(FailureKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{kind, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
[[noreturn]] void type_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{FailureKind::type_error, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
[[noreturn]] void value_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{FailureKind::value_error, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace kvasir::jinja
