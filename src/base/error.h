// Errors that a user can cause, and checks of our own assumptions.
//
// An Error carries a code (the process's exit status follows from it) and a message of one line: the thing,
// what is wrong with it, what was expected, and the way out. Longer material (lists of names, hints) goes
// into details(), printed after the line.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir {

enum class ErrorCode {
  invalid_input,       // a bad argument, value or combination: the caller can correct it
  unsupported,         // well-formed, but not something this build can run
  corrupt_file,        // a file that contradicts its own format
  not_found,           // a file, tensor, model or name that does not exist
  resource_exhausted,  // does not fit: memory, pages, disk, context
  cancelled,           // stopped by the user or a deadline
  internal,            // our own fault
};

std::string_view name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string details = {})
      : std::runtime_error(message), code_(code), details_(std::move(details)) {}

  ErrorCode code() const { return code_; }
  const std::string& details() const { return details_; }

 private:
  ErrorCode code_;
  std::string details_;
};

// throw_error(ErrorCode::corrupt_file, "{}: tensor {} ends beyond the file", path, name)
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Text taken from untrusted input, made safe to print in one line and cut at 200 bytes; base/printable.h says
// what is escaped.
std::string printable(std::string_view text);

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace kvasir

// Always on. A failure is a bug in kvasir, reported with its place; it throws Error{internal}.
#define KVASIR_CHECK(condition)                                              \
  do {                                                                       \
    if (!(condition)) [[unlikely]]                                           \
      ::kvasir::check_failed(#condition, __FILE__, __LINE__, std::string()); \
  } while (false)
#define KVASIR_CHECK_MSG(condition, ...)                                                  \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::kvasir::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
