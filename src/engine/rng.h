// Counter-based random numbers: no state, no order of calls (spec: engine.md 9.4).
//
// Threefry-2x32, 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), as in JAX
// and MLX.
#pragma once

#include <cstdint>

namespace kvasir::engine {

struct RandomKey {
  uint32_t a;
  uint32_t b;
  bool operator==(const RandomKey&) const = default;
};

RandomKey threefry(RandomKey key, RandomKey counter);
// The key of the t-th sampled token of a row with this seed.
RandomKey step_key(uint64_t seed, uint64_t t);
// Uniform in [0, 1 - 2^-24], from the first word of counter (0, 0).
float uniform(RandomKey key);
struct SplitKeys {
  RandomKey first;
  RandomKey second;
};
SplitKeys split(RandomKey key);
// The seed of sample j of a request with n samples: j = 0 keeps the request's own.
uint64_t sample_seed(uint64_t seed, uint64_t j);
// 64 bits from the operating system, for requests that name no seed.
uint64_t fresh_seed();

}  // namespace kvasir::engine
