#include "base/isa.h"

#include <array>
#include <string>

#include "base/error.h"

namespace kvasir {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"generic", "avx2", "avxvnni", "avx512vnni", "avx512bf16", "neon"};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("movbe");
}
bool has_avxvnni() {
  // CPUID leaf 7 sub-leaf 1, EAX bit 4. Not a name that __builtin_cpu_supports of GCC 12 knows.
  unsigned eax = 7, ebx = 0, ecx = 1, edx = 0;
  unsigned maximum = 0, unused_b = 0, unused_c = 0, unused_d = 0;
  __asm__("cpuid" : "=a"(maximum), "=b"(unused_b), "=c"(unused_c), "=d"(unused_d) : "a"(0), "c"(0));
  if (maximum < 7) return false;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (eax >> 4) & 1u;
}
bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

std::string list_available() {
  std::string out;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) out += (out.empty() ? "" : ", ") + std::string(name(level));
  return out;
}

}  // namespace

std::string_view name(IsaLevel level) { return kNames[static_cast<size_t>(level)]; }

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
    case IsaLevel::generic: return true;
    case IsaLevel::avx2: return has_avx2();
    case IsaLevel::avxvnni: return has_avx2() && has_avxvnni();
    case IsaLevel::avx512vnni: return has_avx2() && has_avx512vnni();
    case IsaLevel::avx512bf16: return has_avx2() && has_avx512vnni() && has_avx512bf16();
    case IsaLevel::neon: return false;
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
    throw_error(ErrorCode::invalid_input, "unknown instruction-set level '{}': use auto or one of {}", printable(requested),
                list_available());
  if (!machine_has(*level))
    throw_error(ErrorCode::unsupported, "this machine or build cannot run the instruction-set level {}: it has {}", requested,
                list_available());
  return *level;
}

}  // namespace kvasir
