#include "formats/gguf_writer.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "formats/checked.h"

namespace kvasir::formats {
namespace {

constexpr uint64_t kAlignment = 32;

template <typename T>
void append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string* out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out->append(text);
}

}  // namespace

template <typename T>
void GgufWriter::put(T value) {
  append(&metadata_, value);
}

void GgufWriter::put_string(std::string_view text) {
  append_string(&metadata_, text);
}

void GgufWriter::key(std::string_view key, GgufType type) {
  if (key.empty() || key.size() > ReadLimits{}.gguf_key_bytes)
    throw_error(ErrorCode::invalid_input, "metadata key {}: expected 1 to 65535 bytes", printable(key));
  if (!keys_.emplace(key).second)
    throw_error(ErrorCode::invalid_input, "metadata key {}: set twice", printable(key));
  put_string(key);
  put(static_cast<uint32_t>(type));
}

void GgufWriter::array(std::string_view name, GgufType type, uint64_t count) {
  key(name, GgufType::array);
  put(static_cast<uint32_t>(type));
  put(count);
}

void GgufWriter::set_string(std::string_view name, std::string_view value) {
  key(name, GgufType::string);
  put_string(value);
}
void GgufWriter::set_u16(std::string_view name, uint16_t value) {
  key(name, GgufType::u16);
  put(value);
}
void GgufWriter::set_u32(std::string_view name, uint32_t value) {
  key(name, GgufType::u32);
  put(value);
}
void GgufWriter::set_i32(std::string_view name, int32_t value) {
  key(name, GgufType::i32);
  put(value);
}
void GgufWriter::set_u64(std::string_view name, uint64_t value) {
  key(name, GgufType::u64);
  put(value);
}
void GgufWriter::set_f32(std::string_view name, float value) {
  key(name, GgufType::f32);
  put(value);
}
void GgufWriter::set_bool(std::string_view name, bool value) {
  key(name, GgufType::boolean);
  put<uint8_t>(value ? 1 : 0);
}
void GgufWriter::set_strings(std::string_view name, const std::vector<std::string>& values) {
  array(name, GgufType::string, values.size());
  for (const std::string& value : values) put_string(value);
}
void GgufWriter::set_i32s(std::string_view name, const std::vector<int32_t>& values) {
  array(name, GgufType::i32, values.size());
  for (const int32_t value : values) put(value);
}
void GgufWriter::set_u32s(std::string_view name, const std::vector<uint32_t>& values) {
  array(name, GgufType::u32, values.size());
  for (const uint32_t value : values) put(value);
}
void GgufWriter::set_f32s(std::string_view name, const std::vector<float>& values) {
  array(name, GgufType::f32, values.size());
  for (const float value : values) put(value);
}
void GgufWriter::set_bools(std::string_view name, const std::vector<bool>& values) {
  array(name, GgufType::boolean, values.size());
  for (const bool value : values) put<uint8_t>(value ? 1 : 0);
}
void GgufWriter::set_bytes(std::string_view name, std::span<const uint8_t> values) {
  array(name, GgufType::u8, values.size());
  for (const uint8_t value : values) put(value);
}

void GgufWriter::add_tensor(std::string name, StorageFormat format, std::vector<int64_t> ne,
                            TensorProducer produce) {
  if (name.empty() || name.size() > 63)
    throw_error(ErrorCode::invalid_input, "tensor {}: expected a name of 1 to 63 bytes, got {}",
                printable(name), name.size());
  if (names_.contains(name))
    throw_error(ErrorCode::invalid_input, "tensor {}: two tensors of this name", printable(name));
  const std::optional<uint32_t> type = ggml_type_of(format);
  if (!type)
    throw_error(ErrorCode::invalid_input, "tensor {}: GGUF has no type for storage format {}",
                printable(name), formats::name(format));
  if (ne.size() > 4)
    throw_error(ErrorCode::invalid_input, "tensor {}: expected at most 4 dimensions, got {}", printable(name),
                ne.size());
  const StorageFormatInfo& storage = info(format);
  const int64_t row = ne.empty() ? 1 : ne[0];
  if (row % storage.block_elements != 0)
    throw_error(ErrorCode::invalid_input, "tensor {}: rows of {} elements: expected a multiple of {} for {}",
                printable(name), row, storage.block_elements, storage.name);
  uint64_t bytes = static_cast<uint64_t>(storage.block_bytes);
  bool fits = true;
  for (size_t d = 0; d < ne.size(); ++d)
    fits = fits && ne[d] >= 0 &&
           checked_mul(bytes, static_cast<uint64_t>(d == 0 ? ne[d] / storage.block_elements : ne[d]), &bytes);
  if (!fits) throw_error(ErrorCode::invalid_input, "tensor {}: its size overflows", printable(name));
  names_.insert(name);
  tensors_.push_back({std::move(name), *type, std::move(ne), bytes, std::move(produce)});
}

void GgufWriter::write(const std::filesystem::path& path) const {
  constexpr std::string_view kVersionKey = "general.quantization_version";
  const bool add_version = !keys_.contains(kVersionKey);
  std::string header = "GGUF";
  append<uint32_t>(&header, 3);
  append<int64_t>(&header, static_cast<int64_t>(tensors_.size()));
  append<int64_t>(&header, static_cast<int64_t>(keys_.size() + (add_version ? 1 : 0)));
  header += metadata_;
  if (add_version) {
    append_string(&header, kVersionKey);
    append(&header, static_cast<uint32_t>(GgufType::u32));
    append<uint32_t>(&header, 2);
  }
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    append_string(&header, tensor.name);
    append(&header, static_cast<uint32_t>(tensor.ne.size()));
    for (const int64_t n : tensor.ne) append(&header, n);
    append(&header, tensor.type);
    append(&header, offset);
    uint64_t end = 0;
    if (!checked_add(offset, tensor.bytes, &end) || !checked_align_up(end, kAlignment, &offset))
      throw_error(ErrorCode::invalid_input, "tensor {}: its offset overflows", printable(tensor.name));
  }
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const Tensor& tensor : tensors_) {
    const uint64_t expected = file.written() + tensor.bytes;
    tensor.produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
    KVASIR_CHECK_MSG(file.written() == expected, "tensor {}: {} bytes in all, not {}", tensor.name,
                     file.written(), expected);
    file.write_zeros((kAlignment - file.written() % kAlignment) % kAlignment);
  }
  file.commit();
}

}  // namespace kvasir::formats
