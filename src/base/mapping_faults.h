// A file that shrinks while it is mapped ends a program by SIGBUS when the missing part is read. With the
// handler installed the program says which file it was, and ends with exit status 1.
#pragma once

#include <cstddef>
#include <string>

namespace kvasir {

// Once, at the beginning of main.
void install_mapping_fault_handler();

// Called by MappedFile: registers [data, data + size) under a name for the message; the slot that was taken,
// or -1 when the table is full (a fault there then ends the program as if there were no handler).
int register_mapping(const std::byte* data, size_t size, const std::string& path);
void forget_mapping(int slot);

}  // namespace kvasir
