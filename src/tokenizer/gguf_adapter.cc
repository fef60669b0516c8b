#include "tokenizer/gguf_adapter.h"

#include <algorithm>
#include <limits>

namespace kvasir::tokenizer {

GgufTokenizerData gguf_tokenizer_data(const formats::GgufFile& file) {
  GgufTokenizerData d;
  d.huggingface_json = file.find_string("tokenizer.huggingface.json").value_or(std::string_view());
  d.model = file.find_string("tokenizer.ggml.model").value_or(std::string_view());
  d.pre = file.find_string("tokenizer.ggml.pre");
  d.general_name = file.find_string("general.name").value_or(std::string_view());
  d.tokens = file.find_strings("tokenizer.ggml.tokens").value_or(std::vector<std::string_view>());
  d.merges = file.find_strings("tokenizer.ggml.merges").value_or(std::vector<std::string_view>());
  d.scores = file.find_reals("tokenizer.ggml.scores").value_or(std::vector<float>());
  if (const auto types = file.find_integers("tokenizer.ggml.token_type")) {
    d.token_types.reserve(types->size());
    for (int64_t t : *types) d.token_types.push_back(static_cast<int32_t>(std::clamp<int64_t>(t, -1, 127)));
  }
  const auto id = [&](std::string_view key) { return file.find_integer(key); };
  d.bos = id("tokenizer.ggml.bos_token_id");
  d.eos = id("tokenizer.ggml.eos_token_id");
  d.eot = id("tokenizer.ggml.eot_token_id");
  d.eom = id("tokenizer.ggml.eom_token_id");
  d.unknown = id("tokenizer.ggml.unknown_token_id");
  d.separator = id("tokenizer.ggml.seperator_token_id");  // the format's own spelling
  d.padding = id("tokenizer.ggml.padding_token_id");
  d.mask = id("tokenizer.ggml.mask_token_id");
  d.cls = id("tokenizer.ggml.cls_token_id");
  d.fim_prefix = id("tokenizer.ggml.fim_pre_token_id");
  d.fim_suffix = id("tokenizer.ggml.fim_suf_token_id");
  d.fim_middle = id("tokenizer.ggml.fim_mid_token_id");
  d.fim_padding = id("tokenizer.ggml.fim_pad_token_id");
  d.fim_repository = id("tokenizer.ggml.fim_rep_token_id");
  d.fim_separator = id("tokenizer.ggml.fim_sep_token_id");
  d.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  d.add_eos = file.find_bool("tokenizer.ggml.add_eos_token");
  d.add_separator = file.find_bool("tokenizer.ggml.add_sep_token");
  d.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  d.remove_extra_whitespaces = file.find_bool("tokenizer.ggml.remove_extra_whitespaces");
  d.lowercase = file.find_bool("tokenizer.ggml.normalizer.lowercase");
  d.strip_accents = file.find_bool("tokenizer.ggml.normalizer.strip_accents");
  d.precompiled_charsmap =
      file.find_bytes("tokenizer.ggml.precompiled_charsmap").value_or(std::span<const uint8_t>());
  return d;
}

Tokenizer tokenizer_from_gguf(const formats::GgufFile& file) {
  return Tokenizer::from_gguf(gguf_tokenizer_data(file));
}

}  // namespace kvasir::tokenizer
