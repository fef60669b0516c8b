// What a writer needs to know of one tensor: how large it is, and who produces its bytes when their turn
// comes. Nothing is kept in memory, so checkpoints larger than it can be written.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kvasir::formats {

using ByteSink = std::function<void(std::span<const std::byte>)>;
// Passes all bytes of a tensor to the sink, in order, in pieces of any size.
using TensorProducer = std::function<void(const ByteSink&)>;

// A producer of bytes that are already in memory.
inline TensorProducer produce_bytes(std::vector<std::byte> bytes) {
  return [bytes = std::move(bytes)](const ByteSink& sink) { sink(bytes); };
}

}  // namespace kvasir::formats
