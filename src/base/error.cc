#include "base/error.h"

namespace kvasir {

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_input:
      return "invalid_input";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::corrupt_file:
      return "corrupt_file";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::resource_exhausted:
      return "resource_exhausted";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  const std::string_view path = file;
  const size_t source = path.rfind("src/");
  const std::string_view place = source == std::string_view::npos ? path : path.substr(source);
  throw Error(ErrorCode::internal, fmt::format("internal error at {}:{}: {} does not hold{}{}", place, line,
                                               condition, message.empty() ? "" : ": ", message));
}

}  // namespace kvasir
