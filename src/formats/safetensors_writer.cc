#include "formats/safetensors_writer.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/checked.h"

namespace kvasir::formats {
namespace {

uint64_t bytes_of(const SafetensorsToWrite& tensor) {
  uint64_t bits = info(tensor.dtype).bits;
  for (const int64_t dimension : tensor.shape)
    if (dimension < 0 || !checked_mul(bits, static_cast<uint64_t>(dimension), &bits))
      throw_error(ErrorCode::invalid_input, "tensor {}: its size overflows", printable(tensor.name));
  if (bits % 8 != 0)
    throw_error(ErrorCode::invalid_input, "tensor {}: {} bits are no whole bytes", printable(tensor.name),
                bits);
  return bits / 8;
}

// Valid UTF-8 is required of names; dump() throws for anything else.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();
}

void refuse_equal_names(const std::vector<SafetensorsToWrite>& tensors) {
  std::vector<std::string_view> names;
  for (const SafetensorsToWrite& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw_error(ErrorCode::invalid_input, "tensor {}: two tensors of this name", printable(*twice));
}

// Writes a file whole and seals it.
void fill(AtomicFile& file, std::vector<SafetensorsToWrite> tensors,
          const std::vector<std::pair<std::string, std::string>>& metadata) {
  refuse_equal_names(tensors);
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsToWrite& a, const SafetensorsToWrite& b) {
    const unsigned a_bits = info(a.dtype).bits;
    const unsigned b_bits = info(b.dtype).bits;
    return a_bits != b_bits ? a_bits > b_bits : a.name < b.name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (size_t i = 0; i < metadata.size(); ++i)
      header += (i == 0 ? "" : ",") + quoted(metadata[i].first) + ":" + quoted(metadata[i].second);
    header += "}";
  }
  uint64_t offset = 0;
  for (const SafetensorsToWrite& tensor : tensors) {
    const uint64_t end = offset + bytes_of(tensor);
    header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() == 1 ? "" : ",", quoted(tensor.name), info(tensor.dtype).name,
                          fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const SafetensorsToWrite& tensor : tensors) {
    const uint64_t expected = file.written() + bytes_of(tensor);
    tensor.produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
    KVASIR_CHECK_MSG(file.written() == expected, "tensor {}: {} bytes more than {}", tensor.name,
                     file.written(), expected);
  }
  file.seal();
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsToWrite> tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  AtomicFile file(path);
  fill(file, std::move(tensors), metadata);
  file.commit();
}

void write_safetensors_model(const std::filesystem::path& folder, std::vector<SafetensorsToWrite> tensors,
                             const std::vector<std::pair<std::string, std::string>>& metadata,
                             uint64_t shard_bytes) {
  refuse_equal_names(tensors);
  std::vector<std::vector<SafetensorsToWrite>> shards(1);
  uint64_t total = 0;
  uint64_t in_shard = 0;
  for (SafetensorsToWrite& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    if (!shards.back().empty() && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() == 1)
    return write_safetensors(folder / "model.safetensors", std::move(shards[0]), metadata);
  // All of them are written before any is there under its name.
  std::vector<std::unique_ptr<AtomicFile>> files;
  nlohmann::json map = nlohmann::json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    for (const SafetensorsToWrite& tensor : shards[s]) map[tensor.name] = name;
    files.push_back(std::make_unique<AtomicFile>(folder / name));
    fill(*files.back(), std::move(shards[s]), metadata);
  }
  for (const auto& file : files) file->commit();
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace kvasir::formats
