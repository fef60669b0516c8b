#include "cli/eval_rows.h"

#include <algorithm>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "engine/text_model.h"

namespace kvasir::cli {

std::vector<std::vector<int32_t>> cut_rows(std::span<const int32_t> ids, std::optional<int32_t> bos,
                                           int64_t window) {
  const size_t lead = bos ? 1 : 0;
  KVASIR_CHECK(window == 0 || static_cast<size_t>(window) > lead);
  const size_t own = window == 0 ? ids.size() : static_cast<size_t>(window) - lead;
  std::vector<std::vector<int32_t>> rows;
  for (size_t begin = 0; begin < ids.size(); begin += own) {
    const std::span<const int32_t> part = ids.subspan(begin, std::min(own, ids.size() - begin));
    std::vector<int32_t>& row = rows.emplace_back();
    if (bos) row.push_back(*bos);
    row.insert(row.end(), part.begin(), part.end());
  }
  return rows;
}

std::vector<std::vector<int32_t>> read_rows(const EvalText& text, int64_t window,
                                            const std::filesystem::path& model) {
  std::vector<int32_t> ids;
  std::optional<int32_t> bos;
  if (!text.tokens.empty()) {
    ids = read_token_file(text.tokens);
  } else {
    const engine::TextSide side = open_text(model);
    ids = side.tokenizer->encode(read_input(text.file, size_t{1} << 30),
                                 {.add_special = false, .parse_special = false});
    if (side.tokenizer->adds_bos()) bos = side.tokenizer->bos_id();
  }
  if (ids.empty())
    throw_error(ErrorCode::invalid_input, "{}: holds no tokens",
                printable(text.tokens.empty() ? text.file : text.tokens));
  return cut_rows(ids, bos, window);
}

void check_rows(const models::ModelInfo& info, std::span<const std::vector<int32_t>> rows,
                const EvalText& text) {
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& row : rows) ids.insert(ids.end(), row.begin(), row.end());
  models::check_tokens(ids, info.vocab, text.tokens.empty() ? text.file : text.tokens);
}

}  // namespace kvasir::cli
