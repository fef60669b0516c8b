#include "base/file_error.h"

#include <cerrno>

namespace kvasir {

ErrorCode file_error(int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? ErrorCode::resource_exhausted : ErrorCode::not_found;
}

}  // namespace kvasir
