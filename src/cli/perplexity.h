// The rows and statistics of `kvasir perplexity` (quantize-eval.md 10, mode `mlx`).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

// The samples of a data file: of a name that ends in .jsonl one a line, {"text": "..."}, empty lines left
// out; else the whole text is one. Throws Error{invalid_input}: "<where>:<line>: ...".
std::vector<std::string> read_samples(std::string_view text, const std::string& where);

// numpy.random.RandomState(seed).permutation(count): the order in which mlx-lm takes samples. `seed` is one
// of numpy's, below 2^32.
std::vector<size_t> numpy_permutation(uint32_t seed, size_t count);

struct PerplexityResult {
  int64_t tokens = 0;  // that were predicted
  double mean_nll = 0, perplexity = 0;
  double standard_error =
      0;  // of the perplexity, by the delta method: perplexity * std(nll, ddof 1) / sqrt(N)
};
// Of each token's negative log-likelihood in nats, at least one. Summed in order.
PerplexityResult perplexity_of(const std::vector<double>& nll);

}  // namespace kvasir::cli
