// What it means that the system refuses an operation on a file.
#pragma once

#include "base/error.h"

namespace kvasir {

// Of an errno: resource_exhausted for a disk that is full (or a quota, or a limit on file sizes), else
// not_found, which stands for everything that is not there or cannot be reached: exit status 1.
ErrorCode file_error(int error);

}  // namespace kvasir
