// How much the tests of random programs run.
#pragma once

#include <cstdlib>

namespace kvasir {

// How many random programs a test runs: `usual` unless KVASIR_PROPERTY_SEEDS says otherwise.
inline int property_seeds(int usual) {
  const char* text = std::getenv("KVASIR_PROPERTY_SEEDS");
  return text != nullptr ? std::atoi(text) : usual;
}

}  // namespace kvasir
