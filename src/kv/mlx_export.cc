#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "formats/safetensors_writer.h"
#include "kv/mlx_exchange.h"

namespace kvasir::kv {
namespace {

using formats::SafetensorsDtype;
using Metadata = std::vector<std::pair<std::string, std::string>>;

SafetensorsDtype stored_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return SafetensorsDtype::f32;
    case Dtype::f16:
      return SafetensorsDtype::f16;
    case Dtype::bf16:
      return SafetensorsDtype::bf16;
    default:
      throw_error(ErrorCode::internal, "{} is no dtype of a KV cache", name(dtype));
  }
}

class Export {
 public:
  Export(const KvkFile& entry, MlxForm form, bool windows) : entry_(entry), form_(form), windows_(windows) {}

  void write(const std::filesystem::path& file) {
    const KvkHeader& header = entry_.header();
    if (header.state)
      throw_error(ErrorCode::unsupported, "{}: it has recurrent state, which cannot be exported",
                  entry_.path());
    if (!header.attachments.empty())
      throw_error(ErrorCode::unsupported, "{}: it has attachments ({}), which mlx-lm's files do not hold",
                  entry_.path(), printable(header.attachments.front().schema));
    std::vector<std::pair<size_t, size_t>> layers;  // [layer] group and index in it
    for (size_t g = 0; g < header.groups.size(); ++g)
      for (size_t i = 0; i < header.groups[g].owners.size(); ++i) {
        const auto layer = static_cast<size_t>(header.groups[g].owners[i]);
        if (layers.size() <= layer) layers.resize(layer + 1, {header.groups.size(), 0});
        layers[layer] = {g, i};
      }
    if (form_ == MlxForm::from_0_32) classes_.emplace_back("2.0", "");
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer].first == header.groups.size())
        throw_error(ErrorCode::corrupt_file, "{}: no group has layer {}", entry_.path(), layer);
      add_layer(layer, layers[layer].first, layers[layer].second);
    }
    const std::string user = form_ == MlxForm::from_0_32 ? "0." : "1.";
    Metadata metadata = {{user + "model", header.identity.model_id},
                         {user + "tokenizer_config", "{}"},
                         {user + "tokens", nlohmann::json(header.tokens).dump()}};
    metadata.insert(metadata.end(), info_.begin(), info_.end());
    metadata.insert(metadata.end(), classes_.begin(), classes_.end());
    formats::write_safetensors(file, std::move(tensors_), metadata);
  }

 private:
  [[noreturn]] void refuse(size_t layer, std::string_view reason) const {
    throw_error(ErrorCode::unsupported, "{}: layer {}: {}", entry_.path(), layer, reason);
  }

  void add_layer(size_t layer, size_t g, size_t index) {
    const KvkGroup& group = entry_.header().groups[g];
    const GroupGeometry& geometry = group.geometry;
    const PlaneCodec &k = geometry.codec.k, &v = geometry.codec.v;
    const int32_t offset = entry_.header().offset();
    if (geometry.mla) refuse(layer, "MLA latents are not exported: mlx-lm's caches have keys and values");
    const bool affine = k.kind == PlaneCodec::Kind::affine && v.kind == PlaneCodec::Kind::affine;
    if (!geometry.codec.is_plain() && !(affine && k.bits == v.bits && k.group == v.group))
      refuse(layer,
             fmt::format(
                 "mlx-lm has no cache of {}: plain ones can be exported, and affine ones of the same bits "
                 "and groups for keys and values",
                 describe(geometry.codec)));
    const bool slides = geometry.window && windows_;
    if (geometry.window && !windows_ && offset > *geometry.window)
      refuse(layer, fmt::format("mlx-lm runs this family without its window of {}, which {} tokens have left",
                                *geometry.window, offset));
    if (!slides && group.first > 0) refuse(layer, "its window has left tokens behind");
    if (slides && affine) refuse(layer, "mlx-lm has no quantized cache with a window");
    if (geometry.sinks > 0)
      refuse(layer, "it keeps its first tokens, which mlx-lm's windows do in another way");

    // The next token of a ring replaces its oldest column. Where the window has left something and the last
    // token has been taken back since, that is a token which no query sees any more: zeros stand for it.
    const int32_t live = offset - group.first,
                  unseen = slides && group.first > 0 ? *geometry.window - live : 0;
    if (unseen < 0 || unseen > 1)
      refuse(layer, fmt::format("{} of the {} tokens of its window are stored", live, *geometry.window));
    const int32_t columns = live + unseen;
    const auto list = planes(geometry.codec, geometry.head_dim_k, geometry.head_dim_v);
    for (size_t plane = 0; plane < list.size(); ++plane) {
      const bool words = affine && plane % 3 == 0;
      const SafetensorsDtype dtype =
          words ? SafetensorsDtype::u32
                : stored_dtype(affine ? (plane < 3 ? k : v).scale_dtype : (plane == 0 ? k : v).plain);
      const int64_t width = static_cast<int64_t>(list[plane].bytes * 8 / formats::info(dtype).bits);
      std::string name =
          affine ? fmt::format("{}.{}.{}", layer, plane / 3, plane % 3) : fmt::format("{}.{}", layer, plane);
      tensors_.push_back({.name = std::move(name),
                          .dtype = dtype,
                          .shape = {1, geometry.kv_heads, columns, width},
                          .produce = rows_of(g, index, plane, unseen, list[plane].bytes)});
    }
    const std::string type = affine ? "QuantizedKVCache" : slides ? "RotatingKVCache" : "KVCache";
    classes_.emplace_back(fmt::format("{}.{}", form_ == MlxForm::from_0_32 ? 1 : 2, layer), type);
    if (form_ == MlxForm::before_0_32) {
      std::vector<int32_t> numbers;
      if (affine) numbers = {offset, k.group, k.bits};
      if (slides) numbers = {0, *geometry.window, offset, columns};
      if (numbers.empty()) info_.emplace_back(fmt::format("0.{}", layer), "");
      for (size_t i = 0; i < numbers.size(); ++i)
        info_.emplace_back(fmt::format("0.{}.{}", layer, i), std::to_string(numbers[i]));
      return;
    }
    std::vector<int32_t> numbers = {offset};
    if (affine) numbers = {offset, k.group, k.bits};
    if (slides) numbers = {offset, 0, *geometry.window, columns};
    for (size_t i = 0; i < numbers.size(); ++i) {
      const std::string place = fmt::format("{}.{}", layer, i + 2);
      const auto* bytes = reinterpret_cast<const std::byte*>(&numbers[i]);
      tensors_.push_back({.name = place,
                          .dtype = SafetensorsDtype::i32,
                          .shape = {},
                          .produce = formats::produce_bytes({bytes, bytes + sizeof numbers[i]})});
      ++scalars_;
      classes_.emplace_back(fmt::format("2.{}.0", scalars_), place);
      classes_.emplace_back(fmt::format("2.{}.1", scalars_), "scalar");
    }
  }

  // [1, heads, columns, F]: `unseen` columns of zeros, then what is stored.
  formats::TensorProducer rows_of(size_t g, size_t index, size_t plane, int32_t unseen,
                                  size_t row_bytes) const {
    return [=, this](const formats::ByteSink& sink) {
      const KvkGroup& group = entry_.header().groups[g];
      const int32_t offset = entry_.header().offset();
      const std::vector<std::byte> zeros(static_cast<size_t>(unseen) * row_bytes, std::byte{0});
      for (int head = 0; head < group.geometry.kv_heads; ++head) {
        sink(zeros);
        for (int32_t position = group.first; position < offset;) {
          int32_t run = 0;
          const std::byte* rows = entry_.rows(g, index, plane, head, position, &run);
          run = std::min(run, offset - position);
          sink({rows, static_cast<size_t>(run) * row_bytes});
          position += run;
        }
      }
    };
  }

  const KvkFile& entry_;
  MlxForm form_;
  bool windows_;
  std::vector<formats::SafetensorsToWrite> tensors_;
  Metadata info_, classes_;
  size_t scalars_ = 0;
};

}  // namespace

void export_mlx_cache(const KvkFile& entry, const std::filesystem::path& file, MlxForm form, bool windows) {
  Export(entry, form, windows).write(file);
}

}  // namespace kvasir::kv
