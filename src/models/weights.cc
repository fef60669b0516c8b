#include "models/weights.h"

#include <openssl/evp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>

#include "base/digest.h"
#include "base/error.h"

namespace kvasir::models {
namespace {

// Gives the whole pages inside a mapped span back: the packed copy is what counts from here on. A read-only
// mapping of a file loses nothing by it: a later access reads the file again.
void release_mapped(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The names under which a text model's tensors are stored when a wrapper adds a prefix.
std::array<std::string, 4> candidates(const std::string& name) {
  const std::string inner = name.starts_with("model.") ? name.substr(6) : name;
  return {name, "language_model." + name, "model.language_model." + inner, "text_model." + name};
}

}  // namespace

WeightStore::WeightStore(formats::Checkpoint& checkpoint, const ModelConfig& config)
    : checkpoint_(&checkpoint), model_type_(config.model_type), drop_(config.drop) {
  checkpoint.read_headers();
}

WeightStore::WeightStore(const ModelConfig& config, bool untied)
    : listing_(true), model_type_(config.model_type), drop_(config.drop) {
  if (!untied) absent_.insert(config.names.head + ".weight");
}

void WeightStore::load_into(Arena& arena, ThreadTeam& team, size_t planned_bytes,
                            std::function<bool(size_t, size_t)> progress) {
  arena_ = &arena;
  team_ = &team;
  planned_bytes_ = planned_bytes;
  progress_ = std::move(progress);
}

void WeightStore::stream_to(Sink sink, size_t largest, MemoryLedger* ledger, ThreadTeam& team,
                            size_t planned_bytes, std::function<bool(size_t, size_t)> progress) {
  sink_ = std::move(sink);
  scratch_ = Reservation(largest, ledger, MemoryCategory::weights);
  team_ = &team;
  planned_bytes_ = planned_bytes;
  progress_ = std::move(progress);
}

void WeightStore::map_from(const formats::PackFile& pack, ThreadTeam& team, size_t planned_bytes,
                           std::function<bool(size_t, size_t)> progress) {
  pack_ = &pack;
  team_ = &team;
  planned_bytes_ = planned_bytes;
  progress_ = std::move(progress);
}

std::string WeightStore::stored_name(const std::string& name) const {
  for (const std::string& candidate : candidates(name))
    if (checkpoint_->find(candidate) != nullptr) return candidate;
  return {};
}

bool WeightStore::has(const std::string& name) const {
  if (listing_) return !absent_.contains(name);
  return !stored_name(name).empty();
}

const formats::TensorEntry& WeightStore::entry(const std::string& name, std::vector<int64_t> expected) {
  const std::string stored = stored_name(name);
  if (stored.empty() && !loading()) {
    formats::TensorEntry& missing = missing_[name];
    missing.name = name;
    missing.shape = std::move(expected);
    return missing;
  }
  // Throws for an absent one, with the plain name.
  const formats::TensorEntry& tensor = checkpoint_->tensor(stored.empty() ? name : stored);
  if (!formats::holds_reals(tensor.format))
    throw_error(ErrorCode::unsupported, "{}: tensor {} is of type {}, which no weight can have",
                printable(tensor.file), printable(tensor.name), formats::name(tensor.format));
  return tensor;
}

void WeightStore::refuse_shape(const formats::TensorEntry& tensor, const std::string& expected) const {
  throw_error(ErrorCode::corrupt_file, "{}: tensor {} has shape {}, expected {}",
              checkpoint_->path().string(), printable(tensor.name), shape_text(tensor.shape), expected);
}

void WeightStore::use(const formats::TensorEntry& tensor) {
  if (!used_.insert(tensor.name).second) return;
  stored_bytes_ += tensor.stored_bytes;
  int64_t elements = 1;
  for (int64_t n : tensor.shape) elements *= n;
  parameters_ += elements;
  ++formats_[std::string(formats::name(tensor.format))];
}

formats::StorageFormat WeightStore::format(const std::string& path) {
  if (listing_) return formats::StorageFormat::f32;
  return entry(path + ".weight", {}).format;
}

Dtype WeightStore::storage_dtype(const std::string& path) {
  if (listing_) return Dtype::f32;
  const formats::TensorEntry& tensor = entry(path + ".weight", {});
  switch (tensor.format) {
    case formats::StorageFormat::f16:
      return Dtype::f16;
    case formats::StorageFormat::bf16:
      return Dtype::bf16;
    case formats::StorageFormat::mlx_affine:
    case formats::StorageFormat::int_scaled:
      return checkpoint_->layout(tensor).scale_dtype;
    default:
      return Dtype::f32;
  }
}

int64_t WeightStore::rows(const std::string& path) {
  return entry(path + ".weight", {}).rows();
}

ops::PackPart WeightStore::pack_part(const MatrixPart& part, bool data) {
  if (listing_) {
    formats::WeightSource source;
    source.name = part.path;
    source.rows = part.count > 0 ? part.count : part.rows;
    source.cols = part.cols;
    source.row_bytes = static_cast<size_t>(part.cols) * sizeof(float);
    return {source, part.row_map};
  }
  const std::vector<int64_t> shape = {part.rows, part.cols};
  const formats::TensorEntry tensor = checkpoint_->with_width(entry(part.name(), shape), part.cols);
  if (tensor.rows() != part.rows) refuse_shape(tensor, shape_text(shape));
  formats::WeightSource source = data ? checkpoint_->weight(tensor) : checkpoint_->layout(tensor);
  if (data && source.own_scale && tensor.shape.size() == 3) {
    // One scale a slab of the stack.
    const std::vector<float> scales = checkpoint_->tensor_scales(tensor);
    const int64_t slab_rows = tensor.shape[1];
    const int64_t count = part.count > 0 ? part.count : tensor.rows();
    const int64_t slab = part.first / slab_rows;
    if (scales.size() > 1 && (part.first + count - 1) / slab_rows != slab)
      throw_error(ErrorCode::unsupported, "{}: tensor {}: slabs with scales of their own in one matrix",
                  checkpoint_->path().string(), printable(tensor.name));
    if (scales.size() > 1) source.tensor_scale = scales.at(static_cast<size_t>(slab));
  }
  if (part.count > 0) source = formats::row_range(source, part.first, part.count);
  return {std::move(source), part.row_map};
}

bool WeightStore::can_share(const std::vector<MatrixPart>& parts, ops::PartOrder order) {
  std::vector<ops::PackPart> list;
  for (const MatrixPart& part : parts) list.push_back(pack_part(part, false));
  return ops::PackedMatrix::can_stack(list, order);
}

std::byte* WeightStore::take(size_t bytes) {
  bytes_ = Arena::planned(bytes_, bytes);
  largest_ = std::max(largest_, bytes);
  if (arena_ != nullptr) return arena_->allocate(bytes);
  if (!sink_) return nullptr;
  scratch_.shrink(0);  // zeros again, as an arena's
  scratch_.commit(bytes);
  return scratch_.data();
}

std::span<const std::byte> WeightStore::take_mapped(const std::string& name, size_t bytes) {
  bytes_ = Arena::planned(bytes_, bytes);
  const std::vector<formats::PackEntry>& entries = pack_->contents().entries;
  if (next_entry_ >= entries.size() || entries[next_entry_].name != name ||
      entries[next_entry_].bytes != bytes)
    throw_error(
        ErrorCode::corrupt_file,
        "{}: entry {} is not {} of {} bytes, which the model wants next; write it again with kvasir pack",
        printable(pack_->path()), next_entry_, printable(name), bytes);
  return pack_->data().subspan(entries[next_entry_++].offset, bytes);
}

void WeightStore::check_mapped(const std::string& name, const std::array<uint8_t, 16>& digest) const {
  if (pack_->contents().entries[next_entry_ - 1].digest != digest)
    throw_error(
        ErrorCode::corrupt_file,
        "{}: damaged packed model: the bytes of {} do not match their checksum; write it again with kvasir "
        "pack",
        printable(pack_->path()), printable(name));
}

void WeightStore::advance(size_t stored) {
  stored_bytes_ += stored;
  if (loading() && progress_ && !progress_(bytes_, planned_bytes_))
    throw_error(ErrorCode::cancelled, "{}: loading was cancelled", checkpoint_->path().string());
}

void WeightStore::request(const MatrixPart& part) {
  TensorRequest request{TensorRequest::Kind::matrix, part.name(), {part.rows, part.cols}, part.row_map};
  if (part.slabs > 0) request.shape = {part.slabs, part.rows / part.slabs, part.cols};
  for (int64_t i = 0; i < part.count; ++i) request.map.push_back(static_cast<int32_t>(part.first + i));
  requests_.push_back(std::move(request));
}

std::vector<StoredMatrix> WeightStore::matrices(const std::vector<MatrixPart>& parts, ops::PartOrder order) {
  std::vector<StoredMatrix> out;
  size_t begin = 0;
  while (begin < parts.size()) {
    // From headers alone, so that plan and load cut the same runs.
    std::vector<ops::PackPart> run = {pack_part(parts[begin], false)};
    size_t end = begin + 1;
    for (; end < parts.size(); ++end) {
      run.push_back(pack_part(parts[end], false));
      if (!ops::PackedMatrix::can_stack(run, order)) {
        run.pop_back();
        break;
      }
    }
    KVASIR_CHECK(order == ops::PartOrder::stacked || run.size() == parts.size());
    // A mapped matrix needs nothing of its source but scales of the whole tensor.
    if (loading())
      for (size_t i = begin; i < end; ++i)
        if (pack_ == nullptr || run[i - begin].source.own_scale) run[i - begin] = pack_part(parts[i], true);
    StoredMatrix stored;
    for (size_t i = begin; i < end; ++i) {
      if (listing_)
        request(parts[i]);
      else
        use(entry(parts[i].name(), {}));
      stored.rows += parts[i].packed_rows();
    }
    stored.format = run.front().source.format;
    matrices_.push_back(ops::PackedMatrix::planned(run, order));
    stored.matrix = &matrices_.back();
    const size_t size = ops::PackedMatrix::packed_bytes(run, order);
    const std::string matrix_name = matrices_.back().name();
    if (pack_ != nullptr) {
      matrices_.back() = ops::PackedMatrix::mapped(run, take_mapped(matrix_name, size), *team_, order);
      check_mapped(matrix_name, matrices_.back().digest());
    } else {
      std::byte* memory = take(size);
      if (loading()) {
        ops::PackOptions options;
        options.order = order;
        // Parts that are ranges of one stored matrix are read again by the next part.
        const bool whole =
            std::all_of(run.begin(), run.end(), [](const ops::PackPart& p) { return p.row_map.empty(); });
        if (whole) options.done_with = release_mapped;
        try {
          matrices_.back() = ops::PackedMatrix::pack(run, {memory, size}, *team_, options);
        } catch (const Error& error) {
          if (error.code() != ErrorCode::corrupt_file) throw;  // what knows the tensor knows no file
          throw_error(error.code(), "{}: {}", checkpoint_->path().string(), error.what());
        }
        // What a reader reads lies across the whole of its tensors.
        if (whole)
          for (size_t i = begin; i < end; ++i)
            if (run[i - begin].source.reader != nullptr)
              checkpoint_->visit_stored_bytes(entry(parts[i].name(), {}), release_mapped);
        if (sink_) sink_(bytes_ - size, {memory, size});
      }
      entries_.push_back({matrix_name, bytes_ - size, size, matrices_.back().digest()});
    }
    if (loading()) {
      digests_ += matrices_.back().name() + "=" + hex(matrices_.back().digest());
      if (run.front().source.own_scale)
        digests_ +=
            fmt::format("*{:a}*{:a}", matrices_.back().tensor_scale(), matrices_.back().tensor_scale(1));
      digests_ += "\n";
    }
    advance(0);
    out.push_back(stored);
    begin = end;
  }
  return out;
}

const float* WeightStore::vector(const std::string& name, int64_t length) {
  return vectors({{name, length, {}}});
}

const float* WeightStore::vectors(const std::vector<VectorPart>& parts) {
  int64_t total = 0;
  for (const VectorPart& part : parts)
    total += part.map.empty() ? part.length : static_cast<int64_t>(part.map.size());
  const size_t size = static_cast<size_t>(total) * sizeof(float);
  auto* out = pack_ == nullptr ? reinterpret_cast<float*>(take(size)) : nullptr;
  int64_t at = 0;
  std::string names;
  for (const VectorPart& part : parts) {
    std::vector<int64_t> shape = {part.length};
    if (part.rows > 0) shape = {part.rows, part.length / part.rows};
    if (listing_) {
      requests_.push_back({TensorRequest::Kind::vector, part.name, shape, part.map});
      continue;
    }
    const formats::TensorEntry& tensor = entry(part.name, shape);
    // GGUF's converters may leave one row out.
    if (tensor.shape != shape && (part.rows != 1 || tensor.shape != std::vector{part.length}))
      refuse_shape(tensor, shape_text(shape));
    use(tensor);
    names += (names.empty() ? "" : "+") + tensor.name;
    if (!packing()) continue;
    const std::vector<float> stored = checkpoint_->values(tensor);
    for (size_t i = 0; i < stored.size(); ++i)
      if (!std::isfinite(stored[i]))
        throw_error(ErrorCode::corrupt_file, "{}: tensor {} holds {} at element {}, expected finite values",
                    checkpoint_->path().string(), printable(tensor.name), stored[i], i);
    if (part.map.empty()) {
      std::copy(stored.begin(), stored.end(), out + at);
      at += part.length;
    } else {
      for (int32_t i : part.map) out[at++] = stored[static_cast<size_t>(i)];
    }
  }
  const float* values = out;
  if (pack_ != nullptr) values = reinterpret_cast<const float*>(take_mapped(names, size).data());
  Digest128 digest{};
  if (loading()) {
    const std::span bytes(reinterpret_cast<const std::byte*>(values), size);
    digest = xxh3_128(bytes);
    digests_ += names + "=" + hex(digest) + "\n";
    if (pack_ != nullptr) check_mapped(names, digest);
    if (sink_) sink_(bytes_ - size, bytes);
  }
  if (pack_ == nullptr) entries_.push_back({names, bytes_ - size, size, digest});
  advance(0);
  return values;
}

std::vector<float> WeightStore::values(const std::string& name, int64_t length) {
  if (listing_) {
    requests_.push_back({TensorRequest::Kind::scalar, name, {length}, {}});
    return std::vector<float>(static_cast<size_t>(length), 0.0f);
  }
  const std::vector<int64_t> shape = {length};
  const formats::TensorEntry& tensor = entry(name, shape);
  if (tensor.shape != shape) refuse_shape(tensor, shape_text(shape));
  return read_values(tensor);
}

float WeightStore::scalar(const std::string& name, bool one_element) {
  if (listing_) {
    requests_.push_back({TensorRequest::Kind::scalar, name, {}, {}});
    if (one_element) requests_.back().shape = {1};
    return 0.0f;
  }
  const formats::TensorEntry& tensor = entry(name, {});
  if (!tensor.shape.empty() && tensor.shape != std::vector<int64_t>{1}) refuse_shape(tensor, "[] or [1]");
  return read_values(tensor)[0];
}

std::vector<float> WeightStore::read_values(const formats::TensorEntry& tensor) {
  use(tensor);
  if (!loading()) return std::vector<float>(static_cast<size_t>(tensor.rows() * tensor.cols()), 0.0f);
  std::vector<float> out = checkpoint_->values(tensor);
  for (float v : out)
    if (!std::isfinite(v))
      throw_error(ErrorCode::corrupt_file, "{}: tensor {} holds {}, expected finite values",
                  checkpoint_->path().string(), printable(tensor.name), v);
  digests_ += tensor.name + "=" + hex(xxh3_128(std::as_bytes(std::span(out)))) + "\n";
  return out;
}

std::vector<double> WeightStore::positive_values(const std::string& name, int64_t length) {
  const std::vector<float> stored = values(name, length);
  std::vector<double> out(stored.begin(), stored.end());
  for (double& v : out) {
    if (!loading()) v = 1;
    if (!(v > 0))
      throw_error(ErrorCode::corrupt_file, "{}: tensor {} holds {}, expected values above 0",
                  checkpoint_->path().string(), printable(name), v);
  }
  return out;
}

void WeightStore::audit() const {
  if (listing_) return;
  if (!missing_.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : missing_)
      if (names.size() < 16) names.push_back(printable(name));
    if (missing_.size() == 1)
      throw_error(ErrorCode::not_found, "{}: tensor is missing: {}: the model needs it",
                  checkpoint_->path().string(), names.front());
    throw Error(ErrorCode::not_found,
                fmt::format("{}: {} tensors are missing that a {} model needs, first {}",
                            checkpoint_->path().string(), missing_.size(), model_type_, names.front()),
                fmt::format("{}", fmt::join(names, "\n")));
  }
  std::vector<std::regex> patterns;
  for (const std::string& pattern : drop_) patterns.emplace_back(pattern);
  std::vector<std::string> left;
  for (const formats::TensorEntry& tensor : checkpoint_->tensors()) {
    if (used_.contains(tensor.name)) continue;
    // Patterns are written for the plain names.
    std::vector<std::string> names = {tensor.name};
    if (tensor.name.starts_with("language_model.")) names.push_back(tensor.name.substr(15));
    const bool dropped = std::any_of(names.begin(), names.end(), [&](const std::string& n) {
      return std::any_of(patterns.begin(), patterns.end(),
                         [&](const std::regex& p) { return std::regex_search(n, p); });
    });
    if (!dropped) left.push_back(tensor.name);
  }
  if (left.empty()) return;
  std::string list;
  for (size_t i = 0; i < left.size() && i < 12; ++i) list += (i == 0 ? "" : "\n") + printable(left[i]);
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: {} tensor{} that a {} model does not use, first {}; expected none",
                          checkpoint_->path().string(), left.size(), left.size() == 1 ? "" : "s", model_type_,
                          printable(left.front())),
              list);
}

std::string WeightStore::formats_text() const {
  std::string text;
  for (const auto& [format, count] : formats_)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", format, count);
  return text;
}

std::string WeightStore::digest() const {
  std::array<unsigned char, 32> bytes{};
  unsigned length = 0;
  KVASIR_CHECK(EVP_Digest(digests_.data(), digests_.size(), bytes.data(), &length, EVP_sha256(), nullptr) ==
               1);
  return hex(bytes);
}

}  // namespace kvasir::models
