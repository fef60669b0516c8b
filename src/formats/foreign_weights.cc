#include "formats/foreign_weights.h"

#include <algorithm>
#include <array>
#include <bit>
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
  for (const int group : {256, 128, 64, 32})
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

uint16_t load_half(std::span<const std::byte> data, size_t index) {
  uint16_t half;
  std::memcpy(&half, data.data() + 2 * index, 2);
  return half;
}

// The bits of a stored scale in the converted form's dtype: its own, or f32 for E8M0.
uint32_t scale_bits(std::span<const std::byte> data, D dtype, size_t index) {
  switch (dtype) {
    case D::f32:
      return load_word(data, index);
    case D::f16:
    case D::bf16:
      return load_half(data, index);
    default:
      return std::bit_cast<uint32_t>(e8m0_to_f32(static_cast<uint8_t>(data[index])));
  }
}

// AWQ: column 8 w + c of a row lies in word w at bit 4 * kAwqOrder[c].
constexpr std::array<int, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

// A module as rows of codes, scales and zero points. Everything is read where it lies in the mapping.
class ForeignRows final : public RowReader {
 public:
  ForeignRows(const SafetensorsModel& model, const ForeignTensor& tensor)
      : t_(tensor),
        codes_(model.data(*tensor.codes)),
        scales_(model.data(*tensor.scales)),
        zeros_(tensor.zeros != nullptr ? model.data(*tensor.zeros) : std::span<const std::byte>()),
        middle_(1 << (tensor.bits() - 1)),
        stored_group_(tensor.scheme.block_cols > 0   ? tensor.scheme.block_cols
                      : tensor.scheme.group_size > 0 ? tensor.scheme.group_size
                                                     : tensor.cols),
        file_(model.file(tensor.codes->file).path()) {}

  void read(int64_t row, int64_t col, int64_t count, uint8_t* codes, uint32_t* scales,
            uint16_t* zeros) const override {
    KVASIR_CHECK(row >= 0 && row < t_.rows && col >= 0 && col % t_.group == 0 && count <= t_.cols - col);
    read_codes(row, col, count, codes);
    for (int64_t first = col; first < col + count; first += t_.group, ++scales, ++zeros) {
      const int64_t g = first / stored_group_;
      *scales = scale(row, g);
      if (t_.scheme.layout == ForeignLayout::fp8) continue;
      const int zero = zero_point(row, g);
      if (t_.scheme.symmetric && zero != middle_)
        throw_error(ErrorCode::corrupt_file,
                    "{}: tensor {}: expected zero points of {} (symmetric), got {} for row {}, group {}",
                    printable(file_), printable(t_.zeros->name), middle_, zero, row, g);
      *zeros = static_cast<uint16_t>(zero);
    }
  }

 private:
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const {
    const int bits = t_.bits(), per_word = 32 / bits;
    const uint32_t mask = bits == 8 ? 255u : (1u << bits) - 1u;
    switch (t_.scheme.layout) {
      case ForeignLayout::awq: {  // a word of each column holds eight rows
        const int shift = 4 * kAwqOrder[static_cast<size_t>(row % 8)];
        size_t at = static_cast<size_t>(col * (t_.rows / 8) + row / 8);
        for (int64_t i = 0; i < count; ++i, at += static_cast<size_t>(t_.rows / 8))
          out[i] = static_cast<uint8_t>((load_word(codes_, at) >> shift) & 15u);
        return;
      }
      case ForeignLayout::gptq:
        for (int64_t i = 0; i < count; i += per_word) {
          uint32_t word = load_word(codes_, static_cast<size_t>((col + i) / per_word * t_.rows + row));
          for (int k = 0; k < per_word; ++k, word >>= bits) out[i + k] = static_cast<uint8_t>(word & mask);
        }
        return;
      case ForeignLayout::packed: {
        size_t at = static_cast<size_t>(row * (t_.cols / per_word) + col / per_word);
        for (int64_t i = 0; i < count; i += per_word) {
          uint32_t word = load_word(codes_, at++);
          for (int k = 0; k < per_word; ++k, word >>= bits) out[i + k] = static_cast<uint8_t>(word & mask);
        }
        return;
      }
      default: {
        const auto* bytes = reinterpret_cast<const uint8_t*>(codes_.data()) + row * t_.cols + col;
        const uint8_t flip = t_.scheme.layout == ForeignLayout::integer ? 0x80 : 0;  // q + 128
        for (int64_t i = 0; i < count; ++i) out[i] = bytes[i] ^ flip;
      }
    }
  }

  // Field r % (32 / bits) of a word.
  int field(uint32_t word, int64_t r) const {
    const int per_word = 32 / t_.bits();
    return static_cast<int>((word >> (t_.bits() * (r % per_word))) & ((1u << t_.bits()) - 1u));
  }

  // Zero point of row r and stored group g, as the codes count: value = (code - zero) * scale.
  int zero_point(int64_t r, int64_t g) const {
    if (t_.zeros == nullptr) return middle_;
    const int per_word = 32 / t_.bits();
    const int64_t width = t_.zeros->shape.empty() ? 1 : t_.zeros->shape.back();
    switch (t_.scheme.layout) {
      case ForeignLayout::awq: {
        const uint32_t word = load_word(zeros_, static_cast<size_t>(g * width + r / 8));
        return static_cast<int>((word >> (4 * kAwqOrder[static_cast<size_t>(r % 8)])) & 15u);
      }
      case ForeignLayout::gptq:
        return field(load_word(zeros_, static_cast<size_t>(g * width + r / per_word)), r) +
               (t_.scheme.zero_plus_one ? 1 : 0);
      case ForeignLayout::packed:  // stored with the same offset as the codes
        return field(load_word(zeros_, static_cast<size_t>(r / per_word * width + g)), r);
      default: {  // int8: signed, as the codes were
        const auto at = is_one(*t_.zeros) ? size_t{0} : static_cast<size_t>(r * width + g);
        return static_cast<int8_t>(zeros_[at]) + middle_;
      }
    }
  }

  uint32_t scale(int64_t r, int64_t g) const {
    const auto& s = *t_.scales;
    const bool by_columns = t_.scheme.layout == ForeignLayout::awq || t_.scheme.layout == ForeignLayout::gptq;
    int64_t at = 0;
    if (by_columns)
      at = g * t_.rows + r;
    else if (t_.scheme.block_rows > 0)
      at = r / t_.scheme.block_rows * s.shape[1] + g;
    else if (!is_one(s))
      at = s.shape.size() == 2 ? r * s.shape[1] + g : r;
    return scale_bits(scales_, s.dtype, static_cast<size_t>(at));
  }

  const ForeignTensor t_;
  const std::span<const std::byte> codes_, scales_, zeros_;
  const int middle_;
  const int64_t stored_group_;
  const std::string file_;
};

// Says what is wrong with a tensor's values.
class ValueCheck {
 public:
  ValueCheck(const SafetensorsModel& model, const ForeignTensor& tensor) : model_(model), t_(tensor) {}

  void shape() const {
    if (t_.shape == nullptr) return;
    int64_t stored[2];
    std::memcpy(stored, model_.data(*t_.shape).data(), sizeof stored);
    if (stored[0] != t_.rows || stored[1] != t_.cols)
      corrupt(*t_.shape, fmt::format("[{}, {}], got [{}, {}]", t_.rows, t_.cols, stored[0], stored[1]));
  }
  void order() const {
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
  // What multiplies the product's result.
  float tensor_scale() const {
    const float global = std::bit_cast<float>(load_word(model_.data(*t_.global), 0));
    const float scale = t_.scheme.layout == ForeignLayout::nvfp4_divided ? 1.0f / global : global;
    if (!(scale > 0) || scale > 3e38f) corrupt(*t_.global, fmt::format("a scale above 0, got {}", global));
    return scale;
  }

 private:
  [[noreturn]] void corrupt(const SafetensorsTensor& tensor, std::string_view expected) const {
    throw_error(ErrorCode::corrupt_file, "{}: tensor {}: expected {}",
                printable(model_.file(tensor.file).path()), printable(tensor.name), expected);
  }
  const SafetensorsModel& model_;
  const ForeignTensor& t_;
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
      return StorageFormat::int_scaled;
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
  t.scale_dtype = real_dtype(t.scales->dtype);
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
  source.zeros = source.format == StorageFormat::int_scaled && !tensor.scheme.symmetric;
  source.zero_base = source.zeros && tensor.scheme.zero_plus_one ? 1 : 0;
  return source;
}

WeightSource convert_foreign(const SafetensorsModel& model, const ForeignTensor& tensor,
                             std::string_view name) {
  WeightSource source = foreign_layout(tensor, name);
  const ValueCheck check(model, tensor);
  if (tensor.global != nullptr) source.tensor_scale = check.tensor_scale();
  if (source.format == StorageFormat::mlx_nvfp4 || source.format == StorageFormat::mlx_mxfp4) {
    source.data = model.data(*tensor.codes).data();
    source.scales = model.data(*tensor.scales).data();
    return source;
  }
  check.shape();
  check.order();
  source.reader = std::make_shared<ForeignRows>(model, tensor);
  return source;
}

}  // namespace kvasir::formats
