#include "base/isa.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir {
namespace {

TEST(Isa, GenericAlwaysRuns) {
  EXPECT_TRUE(machine_has(IsaLevel::generic));
  EXPECT_EQ(resolve_isa_level("generic"), IsaLevel::generic);
}

TEST(Isa, BestIsAvailableAndAuto) {
  EXPECT_TRUE(machine_has(best_isa_level()));
  EXPECT_EQ(resolve_isa_level("auto"), best_isa_level());
  EXPECT_EQ(resolve_isa_level(""), best_isa_level());
}

TEST(Isa, NamesRoundTrip) {
  for (IsaLevel level : compiled_isa_levels()) EXPECT_EQ(isa_from_name(name(level)), level);
}

TEST(Isa, HigherLevelsImplyLowerOnes) {
  if (machine_has(IsaLevel::avx512bf16)) {
    EXPECT_TRUE(machine_has(IsaLevel::avx512vnni));
  }
  if (machine_has(IsaLevel::avx512vnni)) {
    EXPECT_TRUE(machine_has(IsaLevel::avx2));
  }
  if (machine_has(IsaLevel::avxvnni)) {
    EXPECT_TRUE(machine_has(IsaLevel::avx2));
  }
}

TEST(Isa, RefusesUnknownAndMissing) {
  EXPECT_THROW(resolve_isa_level("sse9"), Error);
  for (IsaLevel level :
       {IsaLevel::avx2, IsaLevel::avxvnni, IsaLevel::avx512vnni, IsaLevel::avx512bf16, IsaLevel::neon})
    if (!machine_has(level)) {
      try {
        resolve_isa_level(name(level));
        FAIL() << name(level);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
      }
    }
}

}  // namespace
}  // namespace kvasir
