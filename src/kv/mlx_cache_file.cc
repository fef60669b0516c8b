// Reading of mlx-lm's prompt cache files: everything is checked before anything is used.
#include "kv/mlx_cache_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "kv/planes.h"

namespace kvasir::kv {

using formats::SafetensorsDtype;
using formats::SafetensorsTensor;

std::string_view name(MlxForm form) {
  return form == MlxForm::before_0_32 ? "mlx-lm before 0.32" : "mlx-lm from 0.32 on";
}

namespace {

// Bounds of what a file may say, far above any model: products of them stay far below 2^63.
constexpr size_t kMostLayers = 4096;
constexpr int64_t kMostHeads = 1 << 16, kMostChannels = 1 << 16, kMostTokens = INT32_MAX;

std::optional<int32_t> whole_number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0)
    return std::nullopt;
  return value;
}

std::optional<Dtype> plain_dtype(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::f32:
      return Dtype::f32;
    case SafetensorsDtype::f16:
      return Dtype::f16;
    case SafetensorsDtype::bf16:
      return Dtype::bf16;
    default:
      return std::nullopt;
  }
}

}  // namespace

class MlxCacheParser {
 public:
  explicit MlxCacheParser(MlxCacheFile& out) : out_(out), file_(out.file_) {}

  void parse() {
    read_metadata();
    for (size_t layer = 0; layer < classes_.size(); ++layer) read_layer(layer);
    for (const SafetensorsTensor& tensor : file_.tensors())
      if (!used_.contains(tensor.name))
        corrupt(fmt::format("tensor '{}' belongs to none of its {} layers", printable(tensor.name),
                            classes_.size()));
    for (const auto& [path, type] : scalars_)
      if (!used_.contains(path))
        corrupt(fmt::format("its metadata names '{}', which no layer has", printable(path)));
    for (size_t i = 1; i < out_.layers_.size(); ++i)
      if (out_.layers_[i].offset != out_.layers_[0].offset)
        corrupt(fmt::format(
            "layer {} has {} tokens and layer 0 has {}: a cache of one sequence has as many in all", i,
            out_.layers_[i].offset, out_.layers_[0].offset));
  }

 private:
  [[noreturn]] void corrupt(std::string_view reason) const {
    throw_error(ErrorCode::corrupt_file, "{}: {}", file_.path(), reason);
  }

  // "A.B" in which A is a whole number without leading zeros.
  static std::optional<std::pair<int32_t, std::string_view>> split(std::string_view key) {
    const size_t dot = key.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    const auto head = whole_number(key.substr(0, dot));
    if (!head || (dot > 1 && key[0] == '0')) return std::nullopt;
    return std::pair{*head, key.substr(dot + 1)};
  }

  void read_metadata() {
    std::map<std::string, std::string, std::less<>> own;  // all but the user's
    std::vector<std::pair<std::string, std::string>> zero, one;
    for (const auto& [key, value] : file_.metadata()) {
      const auto parts = split(key);
      if (!parts || parts->first > 2)
        throw_error(ErrorCode::corrupt_file,
                    "{}: metadata '{}' is none of an mlx-lm prompt cache's (0.*, 1.*, 2.*)", file_.path(),
                    printable(key));
      if (parts->first == 0) zero.emplace_back(parts->second, value);
      if (parts->first == 1) one.emplace_back(parts->second, value);
      if (parts->first == 2 && !own.emplace(parts->second, value).second)
        corrupt(fmt::format("metadata '{}' is there twice", printable(key)));
    }
    const auto first = own.find("0");
    if (first == own.end())
      corrupt(
          "not a prompt cache of mlx-lm: its metadata has no '2.0', which both forms of these files have");
    out_.form_ = first->second.empty() ? MlxForm::from_0_32 : MlxForm::before_0_32;
    std::map<std::string, std::string, std::less<>> classes;
    if (out_.form_ == MlxForm::from_0_32) {
      out_.metadata_ = std::move(zero);
      for (auto& [key, value] : one)
        if (!classes.emplace(key, value).second)
          corrupt(fmt::format("metadata '1.{}' is there twice", printable(key)));
      read_scalars(own);
    } else {
      out_.metadata_ = std::move(one);
      classes = std::move(own);
      for (auto& [key, value] : zero)
        if (!info_.emplace(key, value).second)
          corrupt(fmt::format("metadata '0.{}' is there twice", printable(key)));
    }
    if (classes.empty()) corrupt("its metadata names the class of no layer");
    if (classes.size() > kMostLayers) corrupt(fmt::format("{} layers are not possible", classes.size()));
    for (size_t layer = 0; layer < classes.size(); ++layer) {
      const auto found = classes.find(std::to_string(layer));
      if (found == classes.end())
        corrupt(fmt::format("its metadata names {} classes of layers, and none of layer {}", classes.size(),
                            layer));
      classes_.push_back(found->second);
    }
  }

  // 2.n.0 and 2.n.1, n = 1, 2, ...: the path of a number and its type.
  void read_scalars(const std::map<std::string, std::string, std::less<>>& own) {
    const size_t count = (own.size() - 1) / 2;
    for (size_t n = 1; n <= count; ++n) {
      const auto path = own.find(fmt::format("{}.0", n)), type = own.find(fmt::format("{}.1", n));
      if (path == own.end() || type == own.end())
        corrupt(fmt::format("its metadata lacks '2.{}.{}', the {} of a number", n, path == own.end() ? 0 : 1,
                            path == own.end() ? "place" : "type"));
      if (!scalars_.emplace(path->second, type->second).second)
        corrupt(fmt::format("its metadata names '{}' twice", printable(path->second)));
    }
    if (own.size() != 1 + 2 * count) corrupt("its metadata lacks the place or the type of a number");
  }

  const SafetensorsTensor& tensor(size_t layer, const std::string& place) {
    const std::string name = fmt::format("{}.{}", layer, place);
    const SafetensorsTensor* found = file_.find(name);
    if (found == nullptr) {
      corrupt(fmt::format("layer {} ({}) has no tensor '{}'", layer, printable(classes_[layer]), name));
    }
    used_.insert(name);
    return *found;
  }

  // From 0.32 on: a tensor without axes, named in the metadata as a number.
  int32_t number_tensor(size_t layer, int place, std::string_view what) {
    const SafetensorsTensor& found = tensor(layer, std::to_string(place));
    const auto stated = scalars_.find(found.name);
    if (stated == scalars_.end() || stated->second != "scalar")
      corrupt(fmt::format("layer {}: its metadata does not say that {} ('{}') is a number", layer, what,
                          printable(found.name)));
    if (found.dtype != SafetensorsDtype::i32 || !found.shape.empty())
      corrupt(fmt::format("layer {}: {} ('{}') is {} with {} axes, expected I32 without any", layer, what,
                          printable(found.name), info(found.dtype).name, found.shape.size()));
    int32_t value = 0;
    std::memcpy(&value, file_.data(found).data(), sizeof value);
    if (value < 0) corrupt(fmt::format("layer {}: {} is {}", layer, what, value));
    return value;
  }

  // Before 0.32: text in the metadata.
  int32_t number_text(size_t layer, int place, std::string_view what) {
    const auto found = info_.find(fmt::format("{}.{}", layer, place));
    if (found == info_.end())
      corrupt(fmt::format("its metadata lacks '0.{}.{}', the {} of layer {}", layer, place, what, layer));
    const auto value = whole_number(found->second);
    if (!value)
      corrupt(fmt::format("layer {}: {} is '{}', which is no whole number", layer, what,
                          printable(found->second)));
    return *value;
  }

  // What a place of the form from 0.32 on is called before: `old` in its own order.
  int32_t number(size_t layer, int place, int old, std::string_view what) {
    return out_.form_ == MlxForm::from_0_32 ? number_tensor(layer, place, what)
                                            : number_text(layer, old, what);
  }

  struct Shape {
    int heads = 0;
    int32_t columns = 0;
    int64_t width = 0;
  };
  Shape shape_of(size_t layer, const SafetensorsTensor& tensor) const {
    if (const auto none = scalars_.find(tensor.name); none != scalars_.end())
      corrupt(none->second == "none" ? fmt::format("layer {} is empty: there is nothing to import", layer)
                                     : fmt::format("layer {}: '{}' is a {} in place of keys or values", layer,
                                                   printable(tensor.name), printable(none->second)));
    std::string text;
    for (const int64_t length : tensor.shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", length);
    if (tensor.shape.size() != 4)
      corrupt(fmt::format("layer {}: '{}' has the shape [{}], expected [1, heads, tokens, channels]", layer,
                          printable(tensor.name), text));
    if (tensor.shape[0] != 1)
      throw_error(ErrorCode::unsupported,
                  "{}: layer {} holds {} sequences ('{}' has the shape [{}]): only caches of one can be read",
                  file_.path(), layer, tensor.shape[0], printable(tensor.name), text);
    if (tensor.shape[1] < 1 || tensor.shape[1] > kMostHeads || tensor.shape[2] < 1 ||
        tensor.shape[2] > kMostTokens || tensor.shape[3] < 1 || tensor.shape[3] > kMostChannels)
      corrupt(fmt::format("layer {}: '{}' has the shape [{}], which is not possible", layer,
                          printable(tensor.name), text));
    return {static_cast<int>(tensor.shape[1]), static_cast<int32_t>(tensor.shape[2]), tensor.shape[3]};
  }

  void add_plane(size_t layer, const SafetensorsTensor& tensor, const Shape& shape) {
    const std::span<const std::byte> bytes = file_.data(tensor);
    const size_t rows = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.columns);
    KVASIR_CHECK(bytes.size() % rows == 0);
    out_.planes_[layer].push_back({bytes, bytes.size() / rows});
  }

  // K or V of a plain or rotating cache; its head dimension.
  int read_plain(size_t layer, int place, MlxLayer& out, PlaneCodec& codec) {
    const SafetensorsTensor& found = tensor(layer, std::to_string(place));
    const Shape shape = shape_of(layer, found);
    const auto dtype = plain_dtype(found.dtype);
    if (!dtype)
      corrupt(fmt::format("layer {}: '{}' is {}, expected F32, F16 or BF16", layer, printable(found.name),
                          info(found.dtype).name));
    codec.plain = *dtype;
    check_alike(layer, found, shape, out);
    add_plane(layer, found, shape);
    return static_cast<int>(shape.width);
  }

  // The first tensor of a layer says how many heads and columns there are.
  void check_alike(size_t layer, const SafetensorsTensor& tensor, const Shape& shape, MlxLayer& out) const {
    if (out.kv_heads == 0) {
      out.kv_heads = shape.heads;
      out.columns = shape.columns;
    }
    if (shape.heads != out.kv_heads || shape.columns != out.columns)
      corrupt(fmt::format("layer {}: '{}' has {} heads and {} tokens, and '{}.0' has {} and {}", layer,
                          printable(tensor.name), shape.heads, shape.columns, layer, out.kv_heads,
                          out.columns));
  }

  int read_quantized(size_t layer, int place, MlxLayer& out, PlaneCodec& codec, int group, int bits) {
    if (const auto none = scalars_.find(fmt::format("{}.{}", layer, place)); none != scalars_.end())
      (void)shape_of(layer, tensor(layer, std::to_string(place)));  // says what stands in their place
    const SafetensorsTensor* parts[3];
    Shape shapes[3];
    for (int i = 0; i < 3; ++i) {
      parts[i] = &tensor(layer, fmt::format("{}.{}", place, i));
      shapes[i] = shape_of(layer, *parts[i]);
      check_alike(layer, *parts[i], shapes[i], out);
    }
    if (parts[0]->dtype != SafetensorsDtype::u32)
      corrupt(fmt::format("layer {}: '{}' is {}, expected U32: packed codes", layer,
                          printable(parts[0]->name), info(parts[0]->dtype).name));
    const auto dtype = plain_dtype(parts[1]->dtype);
    if (!dtype || parts[2]->dtype != parts[1]->dtype)
      corrupt(fmt::format(
          "layer {}: scales and biases ('{}', '{}') are {} and {}, expected both F32, F16 or BF16", layer,
          printable(parts[1]->name), printable(parts[2]->name), info(parts[1]->dtype).name,
          info(parts[2]->dtype).name));
    const int64_t channels = shapes[1].width * group;
    if (shapes[2].width != shapes[1].width || channels > kMostChannels ||
        shapes[0].width * 32 != channels * bits)
      corrupt(fmt::format(
          "layer {}: {} words, {} scales and {} biases a token are not what {} bits in groups of {} need",
          layer, shapes[0].width, shapes[1].width, shapes[2].width, bits, group));
    codec = {.kind = PlaneCodec::Kind::affine,
             .plain = *dtype,
             .bits = bits,
             .group = group,
             .scale_dtype = *dtype};
    if (const std::string reason = why_invalid(codec, static_cast<int>(channels)); !reason.empty())
      corrupt(fmt::format("layer {}: {}", layer, reason));
    for (int i = 0; i < 3; ++i) add_plane(layer, *parts[i], shapes[i]);
    return static_cast<int>(channels);
  }

  void read_layer(size_t layer) {
    static constexpr auto kNumbers = std::to_array<std::pair<std::string_view, size_t>>(
        {{"KVCache", 1}, {"QuantizedKVCache", 3}, {"RotatingKVCache", 4}});
    const std::string& type = classes_[layer];
    const auto known =
        std::find_if(kNumbers.begin(), kNumbers.end(), [&](const auto& k) { return k.first == type; });
    if (known == kNumbers.end())
      throw_error(
          ErrorCode::unsupported,
          "{}: layer {} is a cache of class '{}': KVCache, QuantizedKVCache and RotatingKVCache can be read",
          file_.path(), layer, printable(type));
    out_.planes_.emplace_back();
    MlxLayer out;
    if (type == "KVCache") {
      out.head_dim_k = read_plain(layer, 0, out, out.codec.k);
      out.head_dim_v = read_plain(layer, 1, out, out.codec.v);
      out.offset = out_.form_ == MlxForm::from_0_32 ? number_tensor(layer, 2, "offset") : out.columns;
    } else if (type == "QuantizedKVCache") {
      out.kind = MlxLayer::Kind::quantized;
      out.offset = number(layer, 2, 0, "offset");
      const int32_t group = number(layer, 3, 1, "group_size"), bits = number(layer, 4, 2, "bits");
      // Before sizes are made of them.
      if (const std::string reason = why_invalid(
              {.kind = PlaneCodec::Kind::affine, .bits = bits, .group = group}, group > 0 ? group : 1);
          !reason.empty())
        corrupt(fmt::format("layer {}: {}", layer, reason));
      out.head_dim_k = read_quantized(layer, 0, out, out.codec.k, group, bits);
      out.head_dim_v = read_quantized(layer, 1, out, out.codec.v, group, bits);
    } else {
      out.kind = MlxLayer::Kind::rotating;
      out.offset = number(layer, 2, 2, "offset");
      out.keep = number(layer, 3, 0, "keep");
      out.window = number(layer, 4, 1, "max_size");
      out.next = number(layer, 5, 3, "idx");
      out.head_dim_k = read_plain(layer, 0, out, out.codec.k);
      out.head_dim_v = read_plain(layer, 1, out, out.codec.v);
    }
    if (out.offset == 0) corrupt(fmt::format("layer {} is empty: there is nothing to import", layer));
    if (out.kind == MlxLayer::Kind::rotating)
      find_positions(layer, out);
    else if (out.offset > out.columns)
      corrupt(fmt::format("layer {}: offset {} lies beyond its {} tokens", layer, out.offset, out.columns));
    out_.layers_.push_back(out);
  }

  // The ring is full when idx is behind offset: then column idx is the oldest, but for the first `keep`.
  void find_positions(size_t layer, MlxLayer& out) const {
    const auto contradict = [&](std::string_view reason) {
      corrupt(
          fmt::format("layer {}: a ring of {} tokens with offset {}, keep {}, max_size {} and idx {} is not "
                      "possible: {}",
                      layer, out.columns, out.offset, out.keep, out.window, out.next, reason));
    };
    if (out.window < 1 || out.keep >= out.window) contradict("keep lies below max_size");
    if (out.next > out.columns || out.next > out.offset) contradict("idx lies within both tokens and offset");
    if (out.next == out.offset) return;  // nothing was replaced; unused columns may follow
    if (out.next < out.columns) {
      if (out.columns != out.window) contradict("a ring that has turned has max_size tokens");
      if (out.offset <= out.columns || out.next < out.keep)
        contradict("it has not turned, or into what it keeps");
    }
    if (out.columns <= out.keep) contradict("all that it has is kept");
    out.sinks = out.keep;
    out.first = out.offset - (out.columns - out.keep);
  }

  MlxCacheFile& out_;
  const formats::SafetensorsFile& file_;
  std::vector<std::string> classes_;                         // [layers]
  std::map<std::string, std::string, std::less<>> info_;     // before 0.32: numbers by "layer.i"
  std::map<std::string, std::string, std::less<>> scalars_;  // from 0.32 on: types by path
  std::set<std::string, std::less<>> used_;
};

MlxCacheFile MlxCacheFile::open(const std::filesystem::path& path) {
  MlxCacheFile out(formats::SafetensorsFile::open(path));
  MlxCacheParser(out).parse();
  return out;
}

std::span<const std::byte> MlxCacheFile::row(size_t layer, size_t plane, int head, int32_t position) const {
  const MlxLayer& shape = layers_[layer];
  KVASIR_CHECK(position >= 0 && position < shape.offset && head >= 0 && head < shape.kv_heads);
  KVASIR_CHECK(position >= shape.first || position < shape.sinks);
  int32_t column = position;
  if (shape.first > 0 && position >= shape.first) {
    const int32_t turned = shape.next < shape.columns ? shape.columns - shape.next : 0;  // columns behind idx
    const int32_t at = position - shape.first;                                           // after the oldest
    column = turned > 0 && at < turned ? shape.next + at : shape.keep + at - turned;
  }
  const Plane& from = planes_[layer][plane];
  return from.bytes.subspan(
      (static_cast<size_t>(head) * static_cast<size_t>(shape.columns) + static_cast<size_t>(column)) *
          from.row_bytes,
      from.row_bytes);
}

}  // namespace kvasir::kv
