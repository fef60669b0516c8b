// Checkpoints that other tools quantized: what the quantization section of their config.json says (spec:
// formats.md 3). Such tensors are re-arranged at load into a layout of our own, never re-quantized
// (foreign_weights.h).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pattern.h"

namespace kvasir::formats {

enum class ForeignLayout : uint8_t {
  awq,            // qweight [in, out/8] nibbles in AWQ's order, qzeros, scales
  gptq,           // qweight [in*b/32, out], qzeros, scales, g_idx
  packed,         // compressed-tensors: weight_packed [out, in*b/32], weight_scale, weight_zero_point
  integer,        // int8 weight [out, in], weight_scale, weight_zero_point
  fp8,            // E4M3 weight [out, in], weight_scale or weight_scale_inv: one, a row, or blocks
  nvfp4_divided,  // compressed-tensors: weight_packed, weight_scale (E4M3), divided by weight_global_scale
  nvfp4_times,    // ModelOpt: weight, weight_scale (E4M3), times weight_scale_2
  mxfp4,          // weight_packed, weight_scale (E8M0)
};

struct ForeignScheme {
  ForeignLayout layout = ForeignLayout::awq;
  int bits = 4;
  int group_size = 0;                  // columns per scale; 0: one scale a row or for the whole tensor
  bool symmetric = false;              // the zero point is the middle of the codes; there may be none stored
  bool zero_plus_one = false;          // GPTQ's first form stores zero points minus one
  int block_rows = 0, block_cols = 0;  // fp8 in blocks
};

class ForeignQuantization {
 public:
  // Reads a section with a quant_method. Throws Error{unsupported} naming method and detail for what this
  // build does not read, Error{corrupt_file} for a malformed one.
  static ForeignQuantization from_section(const nlohmann::json& section, const std::string& file);

  const std::string& method() const { return method_; }
  // Of a module, by its path as stored; null: the section leaves it plain.
  const ForeignScheme* scheme(std::string_view path) const;
  // Whether the section lists the module as not converted.
  bool ignored(std::string_view path) const;

 private:
  // What an entry of `targets` or `ignore` matches.
  struct Names {
    std::vector<std::string> exact;
    std::vector<Pattern> patterns;  // "re:..."
    bool linear = false;            // the class name
    bool match(std::string_view path) const;
  };
  static Names names(const nlohmann::json& list, const std::string& file, bool targets);
  void add_group(const nlohmann::json& group, const std::string& format, const std::string& file);

  struct Group {
    ForeignScheme scheme;
    Names targets;
  };
  std::string method_;
  std::vector<Group> groups_;
  Names ignore_;
};

// What a message says of a quantization that is not read: method, detail, and what is.
[[noreturn]] void refuse_quantization(const std::string& file, std::string_view method,
                                      std::string_view detail);

}  // namespace kvasir::formats
