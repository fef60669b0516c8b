#include "kv/attachments.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace kvasir::kv {
namespace {

void check_text(std::string_view text, size_t longest, std::string_view what) {
  if (text.size() > longest)
    throw_error(ErrorCode::invalid_input, "attachment: {} has {} bytes, more than {}", what, text.size(),
                longest);
  try {  // a header is JSON
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw_error(ErrorCode::invalid_input, "attachment: {} '{}' is not UTF-8", what, printable(text));
  }
}

}  // namespace

size_t Attachment::bytes() const {
  size_t total = schema.size();
  for (const auto& [key, value] : metadata) {
    const auto* text = std::get_if<std::string>(&value);
    total += key.size() + (text != nullptr ? text->size() : 8);
  }
  for (const Tensor& tensor : tensors) total += tensor.data.size();
  return total;
}

size_t attached_bytes(std::span<const Attachment> attachments) {
  size_t total = 0;
  for (const Attachment& attachment : attachments) total += attachment.bytes();
  return total;
}

uint64_t tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  if (shape.size() > kMostAttachedAxes)
    throw_error(ErrorCode::invalid_input, "attachment: a tensor of {} axes, more than {}", shape.size(),
                kMostAttachedAxes);
  constexpr uint64_t kMost = uint64_t{1} << 62;
  uint64_t bytes = size_of(dtype);
  for (const int64_t axis : shape) {
    if (axis < 0 || (axis > 0 && bytes > kMost / static_cast<uint64_t>(axis)))
      throw_error(ErrorCode::invalid_input, "attachment: a tensor with an axis of {} is not possible", axis);
    bytes *= static_cast<uint64_t>(axis);
  }
  return bytes;
}

void check_attachments(std::span<const Attachment> attachments) {
  if (attachments.size() > kMostAttachments)
    throw_error(ErrorCode::invalid_input, "{} attachments, more than {}", attachments.size(),
                kMostAttachments);
  std::set<std::string_view> schemas;
  for (const Attachment& attachment : attachments) {
    check_text(attachment.schema, kLongestSchema, "schema");
    if (attachment.schema.empty() || !schemas.insert(attachment.schema).second)
      throw_error(ErrorCode::invalid_input, "attachment: {}",
                  attachment.schema.empty()
                      ? std::string("no schema: nobody could read it")
                      : fmt::format("schema '{}' is there twice", printable(attachment.schema)));
    if (attachment.metadata.size() > kMostAttachedFacts || attachment.tensors.size() > kMostAttachedTensors)
      throw_error(ErrorCode::invalid_input, "attachment '{}': {} facts and {} tensors, more than {} and {}",
                  printable(attachment.schema), attachment.metadata.size(), attachment.tensors.size(),
                  kMostAttachedFacts, kMostAttachedTensors);
    for (const auto& [key, value] : attachment.metadata) {
      check_text(key, kLongestAttachedText, "name");
      if (const auto* text = std::get_if<std::string>(&value))
        check_text(*text, kLongestAttachedText, "value");
      if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number))
        throw_error(ErrorCode::invalid_input, "attachment '{}': {} is {}, which no file can hold",
                    printable(attachment.schema), printable(key), *number);
    }
    for (const Attachment::Tensor& tensor : attachment.tensors)
      if (const uint64_t planned = tensor_bytes(tensor.dtype, tensor.shape); planned != tensor.data.size())
        throw_error(ErrorCode::invalid_input, "attachment '{}': tensor byte-length drift: planned {}, got {}",
                    printable(attachment.schema), planned, tensor.data.size());
  }
}

const Attachment* find_companion(std::span<const Attachment> attachments, std::string_view schema) {
  if (attachments.empty()) return nullptr;
  for (const Attachment& attachment : attachments)
    if (attachment.schema == schema) return &attachment;
  throw_error(ErrorCode::unsupported, "companion cache codec mismatch (stored {}, expected {})",
              printable(attachments.front().schema), printable(schema));
}

}  // namespace kvasir::kv
