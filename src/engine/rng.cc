#include "engine/rng.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <random>

namespace kvasir::engine {

RandomKey threefry(RandomKey key, RandomKey counter) {
  const uint32_t schedule[3] = {key.a, key.b, key.a ^ key.b ^ 0x1BD11BDAu};
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t a = counter.a + schedule[0], b = counter.b + schedule[1];
  for (uint32_t i = 0; i < 5; ++i) {
    for (int rotation : kRotations[i % 2]) {
      a += b;
      b = std::rotl(b, rotation) ^ a;
    }
    a += schedule[(i + 1) % 3];
    b += schedule[(i + 2) % 3] + i + 1;
  }
  return {a, b};
}

RandomKey step_key(uint64_t seed, uint64_t t) {
  const uint64_t z = seed ^ ((t + 1) * 0x9E3779B97F4A7C15u);
  return {static_cast<uint32_t>(z >> 32), static_cast<uint32_t>(z)};
}

float uniform(RandomKey key) {
  const float value = static_cast<float>(threefry(key, {0, 0}).a) * 0x1p-32f;
  return std::min(value, 1.0f - 0x1p-24f);
}

SplitKeys split(RandomKey key) {
  const RandomKey first = threefry(key, {0, 2}), second = threefry(key, {1, 3});
  return {{first.a, second.a}, {first.b, second.b}};
}

uint64_t sample_seed(uint64_t seed, uint64_t j) {
  if (j == 0) return seed;
  uint64_t z = seed + j * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t fresh_seed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) == static_cast<ssize_t>(sizeof seed)) return seed;
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace kvasir::engine
