#include "models/packed_source.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "ops/matmul/packed_matrix.h"

namespace kvasir::models {
namespace {

formats::PackFile open_matching(const std::filesystem::path& path, const formats::Checkpoint& checkpoint,
                                const ModelConfig& config, size_t weights_bytes) {
  formats::PackFile pack = formats::PackFile::open(path);
  const std::string shown = printable(path.string()), model = printable(checkpoint.path().string());
  const formats::PackContents& contents = pack.contents();
  if (contents.layout_version != ops::kComputeLayoutVersion)
    throw_error(ErrorCode::unsupported,
                "{}: packed in layout version {}, expected {}: write it again with kvasir pack {}", shown,
                contents.layout_version, ops::kComputeLayoutVersion, model);
  if (contents.source != source_identity(checkpoint, config))
    throw_error(
        ErrorCode::invalid_input,
        "{}: packed from another model than {}, or before it changed: write it again with kvasir pack {}",
        shown, model, model);
  if (contents.data_bytes != weights_bytes)
    throw_error(ErrorCode::unsupported,
                "{}: holds {} bytes of weights, expected {}: write it again with kvasir pack {}", shown,
                contents.data_bytes, weights_bytes, model);
  return pack;
}

}  // namespace

std::string packed_in_memory(std::string_view why) {
  return fmt::format("{} (weights are packed in memory)", why);
}

PackChoice pack_choice(const std::string& text) {
  if (text == "off") return {};
  if (text == "auto") return {PackChoice::Use::automatic, {}};
  if (text.empty()) throw_error(ErrorCode::invalid_input, "--pack: expected auto, off or a file");
  return {PackChoice::Use::file, text};
}

std::filesystem::path default_pack_path(const std::filesystem::path& model) {
  if (std::filesystem::is_directory(model)) return model / "kvasir.kpack";
  std::filesystem::path path = model;
  path += ".kpack";
  return path;
}

std::array<uint8_t, 16> source_identity(const formats::Checkpoint& checkpoint, const ModelConfig& config) {
  std::string text = "config=" + config.canonical_text() + "\n";
  std::set<std::string> files;
  for (const formats::TensorEntry& tensor : checkpoint.tensors()) {
    files.insert(tensor.file);
    text += fmt::format("tensor={} {} {}", tensor.name, formats::name(tensor.format), tensor.stored_bytes);
    for (int64_t n : tensor.shape) text += fmt::format(" {}", n);
    text += "\n";
  }
  for (const std::string& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0)
      throw_error(ErrorCode::not_found, "{}: cannot be examined: {}", printable(file), std::strerror(errno));
    text += fmt::format("file={} {} {}.{:09}\n", std::filesystem::path(file).filename().string(),
                        status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return xxh3_128(std::as_bytes(std::span(text)));
}

std::optional<formats::PackFile> find_pack(const PackChoice& choice, const formats::Checkpoint& checkpoint,
                                           const ModelConfig& config, size_t weights_bytes,
                                           std::string& note) {
  note.clear();
  if (choice.use == PackChoice::Use::off) return std::nullopt;
  if (choice.use == PackChoice::Use::file)
    return open_matching(choice.file, checkpoint, config, weights_bytes);
  const std::filesystem::path path = default_pack_path(checkpoint.path());
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    return open_matching(path, checkpoint, config, weights_bytes);
  } catch (const Error& error) {
    note = packed_in_memory(error.what());
    return std::nullopt;
  }
}

}  // namespace kvasir::models
