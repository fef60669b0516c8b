// Instruction-set levels: each op's CPU source is compiled once per level, and one level is picked when a
// model is built. A kernel source (src/ops/<op>/cpu.cc) is written like this, all of it static or unnamed:
//
//   #include "base/isa.h"
//   namespace kvasir::ops {
//   namespace KVASIR_ISA_NAMESPACE { ... }
//   extern const RmsNormKernels KVASIR_ISA_SYMBOL(rms_norm_kernels);
//   const RmsNormKernels KVASIR_ISA_SYMBOL(rms_norm_kernels) = {KVASIR_ISA_NAMESPACE::rms_norm};
//   }
//
// and its header says KVASIR_KERNEL_TABLE(RmsNormKernels, rms_norm_kernels), which declares
// `rms_norm_kernels(IsaLevel)`. Keep standard-library templates out of kernel sources: the linker keeps one
// copy of each, possibly the one compiled for a level that this machine lacks.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

// In ascending order of preference on one architecture.
enum class IsaLevel {
  generic,     // the architecture's baseline
  avx2,        // AVX2, FMA, F16C, BMI2 (x86-64-v3)
  avxvnni,     // avx2 + AVX-VNNI (256-bit dpbusd)
  avx512vnni,  // AVX-512 F BW CD DQ VL (x86-64-v4) + VNNI
  avx512bf16,  // avx512vnni + BF16 (dpbf16ps), VBMI, VBMI2
  neon,        // Armv8.2 with dot product and bf16
};

std::string_view name(IsaLevel level);
std::optional<IsaLevel> isa_from_name(std::string_view name);
std::vector<IsaLevel> compiled_isa_levels();
bool machine_has(IsaLevel level);  // compiled in, and this processor (and operating system) can run it
IsaLevel best_isa_level();         // the highest level for which machine_has()
// The level named by a user ("auto" or a name): throws Error{invalid_input} for an unknown name,
// Error{unsupported} for a level that this machine or build lacks, naming those it has.
IsaLevel resolve_isa_level(std::string_view requested);

}  // namespace kvasir

#define KVASIR_CONCAT_(a, b) a##_##b
#define KVASIR_CONCAT(a, b) KVASIR_CONCAT_(a, b)
#if defined(KVASIR_ISA)
#define KVASIR_ISA_NAMESPACE KVASIR_CONCAT(isa, KVASIR_ISA)
#define KVASIR_ISA_SYMBOL(symbol) KVASIR_CONCAT(symbol, KVASIR_ISA)
#endif

#if defined(__x86_64__)
#define KVASIR_KERNEL_TABLE(Type, table)                            \
  extern const Type table##_generic, table##_avx2, table##_avxvnni; \
  extern const Type table##_avx512vnni, table##_avx512bf16;         \
  inline const Type& table(::kvasir::IsaLevel level) {              \
    switch (level) {                                                \
      case ::kvasir::IsaLevel::avx2:                                \
        return table##_avx2;                                        \
      case ::kvasir::IsaLevel::avxvnni:                             \
        return table##_avxvnni;                                     \
      case ::kvasir::IsaLevel::avx512vnni:                          \
        return table##_avx512vnni;                                  \
      case ::kvasir::IsaLevel::avx512bf16:                          \
        return table##_avx512bf16;                                  \
      default:                                                      \
        return table##_generic;                                     \
    }                                                               \
  }
#elif defined(__aarch64__)
#define KVASIR_KERNEL_TABLE(Type, table)                                       \
  extern const Type table##_generic, table##_neon;                             \
  inline const Type& table(::kvasir::IsaLevel level) {                         \
    return level == ::kvasir::IsaLevel::neon ? table##_neon : table##_generic; \
  }
#else
#define KVASIR_KERNEL_TABLE(Type, table)         \
  extern const Type table##_generic;             \
  inline const Type& table(::kvasir::IsaLevel) { \
    return table##_generic;                      \
  }
#endif
