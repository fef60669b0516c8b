#include "base/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <string>

#include "base/error.h"

namespace kvasir {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"generic",    "avx2",       "avxvnni",
                                                    "avx512vnni", "avx512bf16", "neon"};

#if defined(__x86_64__)
// Features that __builtin_cpu_supports of GCC 12 or of Clang 14 has no name for are read from CPUID. (The
// operating system's support of the wide registers is covered by the names that both know.)
struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Registers cpuid(unsigned leaf, unsigned sub_leaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, sub_leaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

bool has_avx2() {
  const unsigned features = cpuid(1, 0).ecx;
  const bool f16c = (features >> 29) & 1u;
  const bool movbe = (features >> 22) & 1u;
  const bool lzcnt = (cpuid(0x80000001u, 0).ecx >> 5) & 1u;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         f16c && lzcnt && movbe;
}
bool has_avxvnni() {
  return (cpuid(7, 1).eax >> 4) & 1u;
}
bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2");
}
#endif

std::string list_available() {
  std::string out;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) out += (out.empty() ? "" : ", ") + std::string(name(level));
  return out;
}

}  // namespace

std::string_view name(IsaLevel level) {
  return kNames[static_cast<size_t>(level)];
}

std::optional<IsaLevel> isa_from_name(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<IsaLevel>(i);
  return std::nullopt;
}

std::vector<IsaLevel> compiled_isa_levels() {
#if defined(__x86_64__)
  return {IsaLevel::generic, IsaLevel::avx2, IsaLevel::avxvnni, IsaLevel::avx512vnni, IsaLevel::avx512bf16};
#elif defined(__aarch64__)
  return {IsaLevel::generic, IsaLevel::neon};
#else
  return {IsaLevel::generic};
#endif
}

bool machine_has(IsaLevel level) {
#if defined(__x86_64__)
  switch (level) {
    case IsaLevel::generic:
      return true;
    case IsaLevel::avx2:
      return has_avx2();
    case IsaLevel::avxvnni:
      return has_avx2() && has_avxvnni();
    case IsaLevel::avx512vnni:
      return has_avx2() && has_avx512vnni();
    case IsaLevel::avx512bf16:
      return has_avx2() && has_avx512vnni() && has_avx512bf16();
    case IsaLevel::neon:
      return false;
  }
  return false;
#elif defined(__aarch64__)
  return level == IsaLevel::generic || level == IsaLevel::neon;
#else
  return level == IsaLevel::generic;
#endif
}

IsaLevel best_isa_level() {
  IsaLevel best = IsaLevel::generic;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) best = level;
  return best;
}

IsaLevel resolve_isa_level(std::string_view requested) {
  if (requested.empty() || requested == "auto") return best_isa_level();
  const std::optional<IsaLevel> level = isa_from_name(requested);
  if (!level)
    throw_error(ErrorCode::invalid_input, "unknown instruction-set level '{}': use auto or one of {}",
                printable(requested), list_available());
  if (!machine_has(*level))
    throw_error(ErrorCode::unsupported,
                "this machine or build cannot run the instruction-set level {}: it has {}", requested,
                list_available());
  return *level;
}

}  // namespace kvasir
