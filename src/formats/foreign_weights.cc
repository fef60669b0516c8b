#include "formats/foreign_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

using D = SafetensorsDtype;

constexpr std::string_view kCodes[] = {".qweight", ".weight_packed"};
constexpr std::string_view kCompanions[] = {
    ".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_shape",
    ".weight_zero_point", ".weight_g_idx", ".weight_global_scale",
    // Scales of activations and of a cache: ours are our own.
    ".input_global_scale", ".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale",
    ".q_scale", ".input_zero_point"};

Dtype real_dtype(D dtype) {
  return dtype == D::f16 ? Dtype::f16 : dtype == D::bf16 ? Dtype::bf16 : Dtype::f32;
}

std::string text(const SafetensorsTensor& tensor) {
  return fmt::format("{} [{}]", info(tensor.dtype).name, fmt::join(tensor.shape, ", "));
}

// Reads the headers of one module.
class HeaderReader {
 public:
  HeaderReader(const SafetensorsModel& model, std::string_view path) : model_(model), path_(path) {}

  const SafetensorsTensor* find(std::string_view suffix) const {
    return model_.find(path_ + std::string(suffix));
  }
  const SafetensorsTensor* need(std::string_view suffix) const {
    const SafetensorsTensor* found = find(suffix);
    if (found == nullptr)
      throw_error(ErrorCode::corrupt_file, "{}: missing beside the codes of {}",
                  printable(path_ + std::string(suffix)), printable(path_));
    return found;
  }
  [[noreturn]] void corrupt(const SafetensorsTensor& tensor, std::string_view expected) const {
    throw_error(ErrorCode::corrupt_file, "{}: tensor {}: expected {}, got {}",
                printable(model_.file(tensor.file).path()), printable(tensor.name), expected, text(tensor));
  }
  void expect(const SafetensorsTensor& tensor, std::initializer_list<D> dtypes,
              std::initializer_list<int64_t> shape) const {
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end() ||
        !std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end()))
      corrupt(tensor, fmt::format("{} [{}]", info(*dtypes.begin()).name, fmt::join(shape, ", ")));
  }
  void expect_matrix(const SafetensorsTensor& tensor, std::initializer_list<D> dtypes) const {
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end() || tensor.shape.size() != 2 ||
        tensor.shape[0] <= 0 || tensor.shape[1] <= 0 || tensor.shape[0] > (int64_t{1} << 31) ||
        tensor.shape[1] > (int64_t{1} << 31))
      corrupt(tensor, fmt::format("a matrix of {}", info(*dtypes.begin()).name));
  }

 private:
  const SafetensorsModel& model_;
  std::string path_;
};

// Columns per scale of the converted form: the stored groups, or equal parts of them.
int converted_group(const ForeignScheme& scheme, int64_t cols) {
  const int64_t stored = scheme.block_cols > 0   ? scheme.block_cols
                         : scheme.group_size > 0 ? scheme.group_size
                                                 : cols;
  for (const int group : {128, 64, 32})
    if (stored % group == 0 && cols % group == 0) return group;
  return 0;
}

bool is_one(const SafetensorsTensor& tensor) {
  return std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n == 1; });
}

uint32_t load_word(std::span<const std::byte> data, size_t index) {
  uint32_t word;
  std::memcpy(&word, data.data() + 4 * index, 4);
  return word;
}

float load_scale(std::span<const std::byte> data, D dtype, size_t index) {
  uint16_t half;
  switch (dtype) {
    case D::f32: {
      float value;
      std::memcpy(&value, data.data() + 4 * index, 4);
      return value;
    }
    case D::f16:
      std::memcpy(&half, data.data() + 2 * index, 2);
      return f16_to_f32(half);
    case D::bf16:
      std::memcpy(&half, data.data() + 2 * index, 2);
      return bf16_to_f32(half);
    default:
      return e8m0_to_f32(static_cast<uint8_t>(data[index]));
  }
}

void store_scale(std::byte* out, Dtype dtype, size_t index, float value) {
  if (dtype == Dtype::f32) {
    std::memcpy(out + 4 * index, &value, 4);
    return;
  }
  const uint16_t bits = dtype == Dtype::f16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(out + 2 * index, &bits, 2);
}

// [rows, cols] words -> [cols, rows], in tiles that the first-level cache holds.
void transpose_words(std::span<const std::byte> in, int64_t rows, int64_t cols, std::byte* out) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
        for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
          std::memcpy(out + 4 * (c * rows + r), in.data() + 4 * (r * cols + c), 4);
}

// AWQ: column 8 w + c of a row lies in word w at bit 4 * kAwqOrder[c].
constexpr std::array<int, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

// [in, out/8] words in that order -> [out, in/8] words of consecutive nibbles.
void transpose_awq(std::span<const std::byte> data, int64_t in, int64_t words, std::byte* out) {
  for (int64_t i0 = 0; i0 < in; i0 += 8)
    for (int64_t w = 0; w < words; ++w) {
      uint32_t block[8], turned[8] = {};
      for (int k = 0; k < 8; ++k) block[k] = load_word(data, static_cast<size_t>((i0 + k) * words + w));
      for (int c = 0; c < 8; ++c)
        for (int k = 0; k < 8; ++k)
          turned[c] |= ((block[k] >> (4 * kAwqOrder[static_cast<size_t>(c)])) & 15u) << (4 * k);
      for (int c = 0; c < 8; ++c) std::memcpy(out + 4 * ((8 * w + c) * (in / 8) + i0 / 8), &turned[c], 4);
    }
}

// The converted planes of a module: scales and biases, [rows, cols / group].
class Converter {
 public:
  Converter(const SafetensorsModel& model, const ForeignTensor& tensor, std::string_view name)
      : model_(model), t_(tensor), name_(name) {}

  WeightSource run() {
    WeightSource source = foreign_layout(t_, name_);
    switch (t_.scheme.layout) {
      case ForeignLayout::nvfp4_divided:
      case ForeignLayout::nvfp4_times:
      case ForeignLayout::mxfp4:
        source.data = model_.data(*t_.codes).data();
        source.scales = model_.data(*t_.scales).data();
        if (t_.global != nullptr) {
          const float global = load_scale(model_.data(*t_.global), D::f32, 0);
          source.tensor_scale = t_.scheme.layout == ForeignLayout::nvfp4_divided ? 1.0f / global : global;
          if (!(source.tensor_scale > 0) || source.tensor_scale > 3e38f)
            corrupt(*t_.global, fmt::format("a scale above 0, got {}", global));
        }
        return source;
      default:
        break;
    }
    check_shape();
    check_order();
    const size_t groups = static_cast<size_t>(t_.rows) * static_cast<size_t>(t_.cols / t_.group);
    const size_t plane = groups * size_of(t_.scale_dtype);
    const size_t code_bytes = needs_copy() ? static_cast<size_t>(t_.rows) * source.row_bytes : 0;
    const bool affine = source.format == StorageFormat::mlx_affine;
    const std::shared_ptr<std::byte[]> memory(new std::byte[code_bytes + (affine ? 2 : 1) * plane]);
    if (code_bytes > 0) copy_codes(memory.get());
    source.data = code_bytes > 0 ? memory.get() : model_.data(*t_.codes).data();
    source.scales = memory.get() + code_bytes;
    if (affine) source.biases = source.scales + plane;
    fill_planes(memory.get() + code_bytes, affine ? memory.get() + code_bytes + plane : nullptr);
    source.owner = memory;
    return source;
  }

 private:
  [[noreturn]] void corrupt(const SafetensorsTensor& tensor, std::string_view expected) const {
    throw_error(ErrorCode::corrupt_file, "{}: tensor {}: expected {}",
                printable(model_.file(tensor.file).path()), printable(tensor.name), expected);
  }
  bool needs_copy() const {
    return t_.scheme.layout == ForeignLayout::awq || t_.scheme.layout == ForeignLayout::gptq ||
           t_.scheme.layout == ForeignLayout::integer;
  }
  void copy_codes(std::byte* out) const {
    const std::span<const std::byte> data = model_.data(*t_.codes);
    if (t_.scheme.layout == ForeignLayout::awq) return transpose_awq(data, t_.cols, t_.rows / 8, out);
    if (t_.scheme.layout == ForeignLayout::gptq)
      return transpose_words(data, t_.codes->shape[0], t_.codes->shape[1], out);
    for (size_t i = 0; i < data.size(); ++i) out[i] = data[i] ^ std::byte{0x80};  // q + 128
  }
  void check_shape() const {
    if (t_.shape == nullptr) return;
    int64_t stored[2];
    std::memcpy(stored, model_.data(*t_.shape).data(), sizeof stored);
    if (stored[0] != t_.rows || stored[1] != t_.cols)
      corrupt(*t_.shape, fmt::format("[{}, {}], got [{}, {}]", t_.rows, t_.cols, stored[0], stored[1]));
  }
  void check_order() const {
    if (t_.order == nullptr) return;
    const std::span<const std::byte> data = model_.data(*t_.order);
    const int64_t group = t_.scheme.group_size > 0 ? t_.scheme.group_size : t_.cols;
    for (int64_t i = 0; i < t_.cols; ++i) {
      const auto stored = static_cast<int32_t>(load_word(data, static_cast<size_t>(i)));
      if (stored != i / group)
        throw_error(
            ErrorCode::unsupported,
            "{}: tensor {}: column {} belongs to group {}, expected {}: columns in the order of their "
            "activations are not supported",
            printable(model_.file(t_.order->file).path()), printable(t_.order->name), i, stored, i / group);
    }
  }

  // Zero point of row r and stored group g, as the codes count: value = (code - zero) * scale.
  int zero_point(int64_t r, int64_t g) const {
    const int middle = 1 << (t_.bits() - 1);
    if (t_.zeros == nullptr) return middle;
    const std::span<const std::byte> data = zeros_;
    switch (t_.scheme.layout) {
      case ForeignLayout::awq: {
        const uint32_t word = load_word(data, static_cast<size_t>(g * (t_.rows / 8) + r / 8));
        return static_cast<int>((word >> (4 * kAwqOrder[static_cast<size_t>(r % 8)])) & 15u);
      }
      case ForeignLayout::gptq: {
        const int per_word = 32 / t_.bits();
        const uint32_t word = load_word(data, static_cast<size_t>(g * t_.zeros->shape[1] + r / per_word));
        const auto stored =
            static_cast<int>((word >> (t_.bits() * (r % per_word))) & ((1u << t_.bits()) - 1u));
        return stored + (t_.scheme.zero_plus_one ? 1 : 0);
      }
      case ForeignLayout::packed: {  // stored with the same offset as the codes
        const int per_word = 32 / t_.bits();
        const uint32_t word = load_word(data, static_cast<size_t>(r / per_word * t_.zeros->shape[1] + g));
        return static_cast<int>((word >> (t_.bits() * (r % per_word))) & ((1u << t_.bits()) - 1u));
      }
      default: {  // int8: signed, as the codes were
        const bool one = is_one(*t_.zeros);
        const auto at = one ? size_t{0} : static_cast<size_t>(r * t_.zeros->shape[1] + g);
        return static_cast<int8_t>(data[at]) + middle;
      }
    }
  }

  float scale(int64_t r, int64_t g) const {
    const auto& s = *t_.scales;
    const bool by_columns = t_.scheme.layout == ForeignLayout::awq || t_.scheme.layout == ForeignLayout::gptq;
    int64_t at = 0;
    if (by_columns)
      at = g * t_.rows + r;
    else if (t_.scheme.block_rows > 0)
      at = r / t_.scheme.block_rows * s.shape[1] + g;
    else if (!is_one(s))
      at = s.shape.size() == 2 ? r * s.shape[1] + g : r;
    return load_scale(scales_, s.dtype, static_cast<size_t>(at));
  }

  void fill_planes(std::byte* scales, std::byte* biases) {
    scales_ = model_.data(*t_.scales);
    if (t_.zeros != nullptr) zeros_ = model_.data(*t_.zeros);
    const int64_t groups = t_.cols / t_.group;
    const int64_t stored = t_.scheme.block_cols > 0   ? t_.scheme.block_cols
                           : t_.scheme.group_size > 0 ? t_.scheme.group_size
                                                      : t_.cols;
    const int middle = 1 << (t_.bits() - 1);
    size_t at = 0;
    for (int64_t r = 0; r < t_.rows; ++r)
      for (int64_t j = 0; j < groups; ++j, ++at) {
        const int64_t g = j * t_.group / stored;
        const float s = scale(r, g);
        store_scale(scales, t_.scale_dtype, at, s);
        if (biases == nullptr) continue;
        const int zero = zero_point(r, g);
        if (t_.scheme.symmetric && zero != middle)
          corrupt(*t_.zeros, fmt::format("zero points of {} (symmetric), got {} for row {}, group {}", middle,
                                         zero, r, g));
        store_scale(biases, t_.scale_dtype, at, -static_cast<float>(zero) * s);
      }
  }

  const SafetensorsModel& model_;
  const ForeignTensor& t_;
  std::string_view name_;
  std::span<const std::byte> scales_, zeros_;
};

}  // namespace

StorageFormat ForeignTensor::format() const {
  switch (scheme.layout) {
    case ForeignLayout::fp8:
      return StorageFormat::f8_scaled;
    case ForeignLayout::nvfp4_divided:
    case ForeignLayout::nvfp4_times:
      return StorageFormat::mlx_nvfp4;
    case ForeignLayout::mxfp4:
      return StorageFormat::mlx_mxfp4;
    default:
      return StorageFormat::mlx_affine;
  }
}

int ForeignTensor::bits() const {
  return scheme.bits;
}

uint64_t ForeignTensor::stored_bytes() const {
  uint64_t bytes = 0;
  for (const SafetensorsTensor* part : {codes, scales, zeros, order, shape, global})
    if (part != nullptr) bytes += part->bytes;
  return bytes;
}

bool is_foreign_codes(std::string_view suffix) {
  return std::find(std::begin(kCodes), std::end(kCodes), suffix) != std::end(kCodes);
}

bool is_foreign_companion(std::string_view suffix) {
  return std::find(std::begin(kCompanions), std::end(kCompanions), suffix) != std::end(kCompanions);
}

ForeignTensor read_foreign(const SafetensorsModel& model, std::string_view path,
                           const ForeignScheme& scheme) {
  const HeaderReader h(model, path);
  ForeignTensor t;
  t.scheme = scheme;
  const int bits = scheme.bits;
  const auto groups = [&] {
    return scheme.group_size > 0 ? (t.cols + scheme.group_size - 1) / scheme.group_size : 1;
  };
  const auto zeros = [&](const char* name) { return scheme.symmetric ? h.find(name) : h.need(name); };
  const auto reals = {D::f16, D::bf16, D::f32};
  switch (scheme.layout) {
    case ForeignLayout::awq:
      t.codes = h.need(".qweight");
      t.scales = h.need(".scales");
      t.zeros = zeros(".qzeros");
      h.expect_matrix(*t.codes, {D::i32});
      t.cols = t.codes->shape[0];
      t.rows = t.codes->shape[1] * 8;
      if (const SafetensorsTensor* order = h.find(".g_idx"))
        h.corrupt(*order, "no g_idx in an awq checkpoint");
      h.expect(*t.scales, reals, {groups(), t.rows});
      if (t.zeros != nullptr) h.expect(*t.zeros, {D::i32}, {groups(), t.rows / 8});
      break;
    case ForeignLayout::gptq:
      t.codes = h.need(".qweight");
      t.scales = h.need(".scales");
      t.zeros = zeros(".qzeros");
      t.order = h.find(".g_idx");
      h.expect_matrix(*t.codes, {D::i32});
      t.cols = t.codes->shape[0] * (32 / bits);
      t.rows = t.codes->shape[1];
      h.expect(*t.scales, reals, {groups(), t.rows});
      if (t.rows % (32 / bits) != 0) h.corrupt(*t.codes, fmt::format("a multiple of {} columns", 32 / bits));
      if (t.zeros != nullptr) h.expect(*t.zeros, {D::i32}, {groups(), t.rows / (32 / bits)});
      if (t.order != nullptr) h.expect(*t.order, {D::i32}, {t.cols});
      break;
    case ForeignLayout::packed:
      t.codes = h.need(".weight_packed");
      t.scales = h.need(".weight_scale");
      t.zeros = zeros(".weight_zero_point");
      t.order = h.find(".weight_g_idx");
      t.shape = h.find(".weight_shape");
      h.expect_matrix(*t.codes, {D::i32});
      t.rows = t.codes->shape[0];
      t.cols = t.codes->shape[1] * (32 / bits);
      if (!(scheme.group_size == 0 && is_one(*t.scales))) h.expect(*t.scales, reals, {t.rows, groups()});
      if (t.zeros != nullptr)
        h.expect(*t.zeros, {D::i32}, {(t.rows + 32 / bits - 1) / (32 / bits), groups()});
      if (t.order != nullptr) h.expect(*t.order, {D::i32}, {t.cols});
      if (t.shape != nullptr) h.expect(*t.shape, {D::i64}, {2});
      break;
    case ForeignLayout::integer:
      t.codes = h.need(".weight");
      t.scales = h.need(".weight_scale");
      t.zeros = zeros(".weight_zero_point");
      h.expect_matrix(*t.codes, {D::i8});
      t.rows = t.codes->shape[0];
      t.cols = t.codes->shape[1];
      if (!(scheme.group_size == 0 && is_one(*t.scales))) h.expect(*t.scales, reals, {t.rows, groups()});
      if (t.zeros != nullptr && !(scheme.group_size == 0 && is_one(*t.zeros)))
        h.expect(*t.zeros, {D::i8}, {t.rows, groups()});
      if (t.zeros != nullptr && t.zeros->dtype != D::i8) h.corrupt(*t.zeros, "I8");
      break;
    case ForeignLayout::fp8: {
      t.codes = h.need(".weight");
      t.scales = h.find(".weight_scale_inv");
      if (t.scales == nullptr) t.scales = h.need(".weight_scale");
      h.expect_matrix(*t.codes, {D::f8_e4m3});
      t.rows = t.codes->shape[0];
      t.cols = t.codes->shape[1];
      if (scheme.block_rows > 0) {
        h.expect(*t.scales, {D::f32, D::bf16, D::f16, D::f8_e8m0},
                 {(t.rows + scheme.block_rows - 1) / scheme.block_rows,
                  (t.cols + scheme.block_cols - 1) / scheme.block_cols});
      } else if (!is_one(*t.scales)) {
        if (t.scales->shape.size() == 1)
          h.expect(*t.scales, {D::f32, D::bf16, D::f16}, {t.rows});
        else
          h.expect(*t.scales, {D::f32, D::bf16, D::f16}, {t.rows, 1});
      }
      break;
    }
    case ForeignLayout::nvfp4_divided:
    case ForeignLayout::nvfp4_times:
    case ForeignLayout::mxfp4: {
      const bool ours = scheme.layout == ForeignLayout::nvfp4_times;
      t.codes = h.need(ours ? ".weight" : ".weight_packed");
      t.scales = h.need(".weight_scale");
      if (scheme.layout != ForeignLayout::mxfp4)
        t.global = h.need(ours ? ".weight_scale_2" : ".weight_global_scale");
      h.expect_matrix(*t.codes, {D::u8});
      t.rows = t.codes->shape[0];
      t.cols = t.codes->shape[1] * 2;
      if (t.cols % scheme.group_size != 0)
        h.corrupt(*t.codes, fmt::format("rows of whole groups of {}", scheme.group_size));
      if (scheme.layout == ForeignLayout::mxfp4)
        h.expect(*t.scales, {D::u8, D::f8_e8m0}, {t.rows, t.cols / scheme.group_size});
      else
        h.expect(*t.scales, {D::f8_e4m3}, {t.rows, t.cols / scheme.group_size});
      if (t.global != nullptr && (t.global->dtype != D::f32 || !is_one(*t.global)))
        h.corrupt(*t.global, "one F32");
      t.group = scheme.group_size;
      t.scale_dtype = Dtype::u8;
      return t;
    }
  }
  t.group = converted_group(scheme, t.cols);
  const bool known = std::find(reals.begin(), reals.end(), t.scales->dtype) != reals.end() ||
                     (scheme.block_rows > 0 && t.scales->dtype == D::f8_e8m0);
  if (!known) h.corrupt(*t.scales, "scales of F16, BF16 or F32");
  if (t.group == 0)
    throw_error(ErrorCode::unsupported, "{}: {} columns with groups of {}: expected multiples of 32",
                printable(t.codes->name), t.cols, scheme.group_size);
  if (scheme.group_size > 0 && t.cols % scheme.group_size != 0)
    h.corrupt(*t.codes, fmt::format("rows of whole groups of {}", scheme.group_size));
  // A bias of -2^(b-1) times the scale has the scale's digits; another zero point needs more.
  if (scheme.layout != ForeignLayout::fp8 && scheme.symmetric) t.scale_dtype = real_dtype(t.scales->dtype);
  return t;
}

WeightSource foreign_layout(const ForeignTensor& tensor, std::string_view name) {
  WeightSource source;
  source.name = name;
  source.format = tensor.format();
  source.rows = tensor.rows;
  source.cols = tensor.cols;
  source.bits = tensor.bits();
  source.group_size = tensor.group;
  source.row_bytes = static_cast<size_t>(tensor.cols) * static_cast<size_t>(tensor.bits()) / 8;
  source.scale_dtype = tensor.scale_dtype;
  source.own_scale = tensor.global != nullptr;
  return source;
}

WeightSource convert_foreign(const SafetensorsModel& model, const ForeignTensor& tensor,
                             std::string_view name) {
  return Converter(model, tensor, name).run();
}

}  // namespace kvasir::formats
