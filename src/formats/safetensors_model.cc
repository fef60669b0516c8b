// Models of several safetensors files: which files belong to a folder, and one catalogue over all of them.
#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "formats/file_names.h"
#include "formats/json_scanner.h"
#include "formats/safetensors.h"

namespace kvasir::formats {
namespace {

constexpr std::string_view kIndex = "model.safetensors.index.json";

struct Index {
  std::string text;                   // what the views below look into
  std::deque<std::string> own_names;  // names written with escapes
  std::vector<std::string> files;     // sorted
  struct Entry {
    std::string_view tensor;
    uint32_t file;
  };
  std::vector<Entry> entries;  // sorted by tensor
};

void read_weight_map(JsonScanner& scanner, const std::string& path, const ReadLimits& limits, Index* index) {
  std::unordered_map<std::string, uint32_t> numbers;  // in the order of first mention
  scanner.begin_object();
  std::string_view key;
  bool view = false;
  while (scanner.next_key(&key, &view)) {
    const std::string_view tensor = view ? key : std::string_view(index->own_names.emplace_back(key));
    if (index->entries.size() >= limits.tensors)
      throw_error(ErrorCode::corrupt_file, "{}: too many tensors: limit {}", printable(path), limits.tensors);
    if (scanner.peek() != JsonScanner::Kind::string)
      scanner.fail(fmt::format("file of tensor \"{}\" is no string", printable(tensor)));
    const std::string file(scanner.string());
    if (!is_plain_file_name(file))
      throw_error(ErrorCode::corrupt_file, "{}: invalid shard name: {}: expected a file beside the index",
                  printable(path), printable(file));
    const auto [at, inserted] = numbers.emplace(file, static_cast<uint32_t>(index->files.size()));
    if (inserted) index->files.push_back(file);
    if (index->files.size() > limits.shards)
      throw_error(ErrorCode::corrupt_file, "{}: too many shards: limit {}", printable(path), limits.shards);
    index->entries.push_back({tensor, at->second});
  }
  std::sort(index->entries.begin(), index->entries.end(),
            [](const Index::Entry& a, const Index::Entry& b) { return a.tensor < b.tensor; });
  for (size_t i = 1; i < index->entries.size(); ++i)
    if (index->entries[i].tensor == index->entries[i - 1].tensor)
      scanner.fail(fmt::format("duplicate key \"{}\" in weight_map", printable(index->entries[i].tensor)));
  std::vector<uint32_t> rank(index->files.size());
  std::sort(index->files.begin(), index->files.end());
  for (const auto& [file, number] : numbers)
    rank[number] = static_cast<uint32_t>(std::lower_bound(index->files.begin(), index->files.end(), file) -
                                         index->files.begin());
  for (Index::Entry& entry : index->entries) entry.file = rank[entry.file];
}

void read_index(const std::filesystem::path& path, const ReadLimits& limits, Index* index) {
  index->text = read_file(path, limits.index_bytes);
  JsonScanner scanner(index->text, path.string(), {.depth = limits.json_depth, .non_finite = true});
  std::set<std::string> seen;
  scanner.begin_object();
  std::string_view key;
  while (scanner.next_key(&key)) {
    const auto [at, inserted] = seen.emplace(key);
    if (!inserted) scanner.fail(fmt::format("duplicate key \"{}\"", printable(*at)));
    if (*at == "weight_map")
      read_weight_map(scanner, path.string(), limits, index);
    else
      scanner.skip();  // metadata.total_size is wrong in real checkpoints: not read
  }
  scanner.finish();
  if (!seen.contains("weight_map")) scanner.fail("\"weight_map\" is missing");
}

// Whoever made the folder must not make us read what lies elsewhere.
void check_inside(const std::filesystem::path& folder, const std::filesystem::path& path) {
  if (stays_inside(folder, path)) return;
  throw_error(ErrorCode::corrupt_file,
              "{}: {} is a link out of the folder: expected a file in it (links lead out of a Hugging Face "
              "cache's snapshots only, into its blobs)",
              printable(folder.string()), printable(path.filename().string()));
}

// model.safetensors, else every model*.safetensors, sorted by name.
std::vector<std::filesystem::path> files_without_index(const std::filesystem::path& folder) {
  if (std::filesystem::is_regular_file(folder / "model.safetensors")) return {folder / "model.safetensors"};
  std::vector<std::filesystem::path> found;
  std::string other;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors"))
      found.push_back(entry.path());
    else if (name == "consolidated.safetensors" || name.ends_with(".bin") || name.ends_with(".pth") ||
             name.ends_with(".npz"))
      other = other.empty() ? name : std::min(other, name);
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) return found;
  if (!other.empty())
    throw_error(ErrorCode::unsupported,
                "{}: unsupported checkpoint: found {}, expected model*.safetensors: convert to safetensors",
                printable(folder.string()), printable(other));
  throw_error(ErrorCode::not_found, "{}: no weights: expected model.safetensors, its shards, or a .gguf file",
              printable(folder.string()));
}

}  // namespace

void SafetensorsModel::index_tensors() {
  size_t count = 0;
  for (const SafetensorsFile& file : files_) count += file.tensors().size();
  tensors_.reserve(count);
  for (size_t f = 0; f < files_.size(); ++f)
    for (SafetensorsTensor tensor : files_[f].tensors()) {
      tensor.file = static_cast<uint32_t>(f);
      tensors_.push_back(tensor);
    }
  by_name_.resize(count);
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < count; ++i) {
    const SafetensorsTensor& a = tensors_[by_name_[i - 1]];
    const SafetensorsTensor& b = tensors_[by_name_[i]];
    if (a.name == b.name)
      throw_error(ErrorCode::corrupt_file, "{}: tensor {} is also in {}: expected one of them",
                  printable(files_[b.file].path()), printable(b.name),
                  printable(std::filesystem::path(files_[a.file].path()).filename().string()));
  }
}

SafetensorsModel SafetensorsModel::open_files(std::span<const std::filesystem::path> paths,
                                              const SafetensorsOptions& options) {
  SafetensorsModel model;
  uint64_t tensors = 0;
  for (const std::filesystem::path& path : paths) {
    model.files_.push_back(SafetensorsFile::open(path, options));
    tensors += model.files_.back().tensors().size();
    if (tensors > options.limits.tensors)
      throw_error(ErrorCode::corrupt_file, "{}: too many tensors: limit {} for a model",
                  printable(path.string()), options.limits.tensors);
  }
  model.index_tensors();
  return model;
}

SafetensorsModel SafetensorsModel::open_folder(const std::filesystem::path& folder,
                                               const SafetensorsOptions& options) {
  const std::filesystem::path index_path = folder / kIndex;
  if (!std::filesystem::exists(index_path)) {
    const std::vector<std::filesystem::path> paths = files_without_index(folder);
    if (paths.size() > options.limits.shards)
      throw_error(ErrorCode::corrupt_file, "{}: too many shards: limit {}, got {}",
                  printable(folder.string()), options.limits.shards, paths.size());
    for (const std::filesystem::path& path : paths) check_inside(folder, path);
    return open_files(paths, options);
  }
  Index index;
  read_index(index_path, options.limits, &index);
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : index.files) {
    paths.push_back(folder / name);
    if (!std::filesystem::exists(paths.back()))
      throw_error(ErrorCode::not_found, "{}: missing shard {} (incomplete download?)",
                  printable(folder.string()), printable(name));
    check_inside(folder, paths.back());
  }
  SafetensorsModel model = open_files(paths, options);
  for (const auto& [tensor, file] : index.entries)
    if (model.files_[file].find(tensor) == nullptr)
      throw_error(ErrorCode::corrupt_file, "{}: tensor {}: index says {}, not there",
                  printable(index_path.string()), printable(tensor), printable(index.files[file]));
  std::vector<std::string_view> extra;
  for (const uint32_t i : model.by_name_) {
    const std::string_view name = model.tensors_[i].name;
    const auto at =
        std::lower_bound(index.entries.begin(), index.entries.end(), name,
                         [](const Index::Entry& entry, std::string_view n) { return entry.tensor < n; });
    if (at == index.entries.end() || at->tensor != name) extra.push_back(name);
  }
  if (!extra.empty())
    model.warnings_.push_back(fmt::format("{}: {} tensors are missing from the index, first {}",
                                          printable(index_path.string()), extra.size(),
                                          printable(extra.front())));
  return model;
}

const SafetensorsTensor* SafetensorsModel::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

const SafetensorsTensor& SafetensorsModel::tensor(std::string_view name) const {
  if (const SafetensorsTensor* found = find(name)) return *found;
  throw_error(ErrorCode::not_found, "{}: tensor is missing: {}: the model needs it",
              files_.empty() ? std::string("model") : printable(files_.front().path()), printable(name));
}

std::span<const std::byte> SafetensorsModel::data(const SafetensorsTensor& tensor) const {
  data_opens_->fetch_add(1);
  return files_[tensor.file].data(tensor);
}

WeightSource SafetensorsModel::weight(const SafetensorsTensor& tensor) const {
  const SafetensorsDtypeInfo& dtype = info(tensor.dtype);
  if (!dtype.format)
    throw_error(ErrorCode::unsupported, "{}: tensor {}: dtype {} is not supported",
                printable(files_[tensor.file].path()), printable(tensor.name), dtype.name);
  WeightSource source;
  source.name = std::string(tensor.name);
  source.format = *dtype.format;
  source.cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  source.rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) source.rows *= tensor.shape[i];
  source.row_bytes = static_cast<size_t>(source.cols) * dtype.bits / 8;
  source.data = data(tensor).data();
  return source;
}

}  // namespace kvasir::formats
