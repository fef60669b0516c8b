#include "tokenizer/gguf_pre_kinds.h"

#include <algorithm>
#include <initializer_list>

namespace kvasir::tokenizer {

std::optional<PreKind> pre_kind(std::string_view name) {
  const auto any = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (any({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
           "jina-v5-nano"})) {
    return PreKind{{Scan::llama3}, true, true};
  }
  if (any({"dbrx", "smaug-bpe"})) return PreKind{{Scan::llama3}};
  if (any({"chatglm-bpe"})) return PreKind{{Scan::llama3}, false, false, false, false};
  if (any({"glm4", "glm5"})) return PreKind{{Scan::llama3}, true};
  if (any({"minicpm5"})) return PreKind{{Scan::digit_triples, Scan::llama3_any_digits}, true};
  if (any({"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2", "kormo",
           "f2llmv2"})) {
    return PreKind{{Scan::qwen2}};
  }
  if (any({"qwen35"})) return PreKind{{Scan::qwen35}};
  if (any({"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "mellum", "a.x-4.0",
           "modern-bert", "granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"})) {
    return PreKind{{Scan::gpt2}};
  }
  if (any({"jina-v1-en", "jina-v2-code", "roberta-bpe"})) return PreKind{{Scan::gpt2}, false, false, true};
  if (any({"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"})) return PreKind{{Scan::gpt4o}};
  if (any({"tekken"})) return PreKind{{Scan::tekken}, true, true};
  if (any({"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"})) {
    return PreKind{{Scan::digit_triples, Scan::cjk_runs, Scan::deepseek_v3_words}};
  }
  if (any({"deepseek-llm"})) {
    return PreKind{{Scan::newlines, Scan::deepseek_llm_letters, Scan::deepseek_llm_punctuation,
                    Scan::trailing_space, Scan::wide_cjk_runs, Scan::digit_runs}};
  }
  if (any({"deepseek-coder"})) {
    return PreKind{{Scan::newlines, Scan::letters_after_space, Scan::punctuation_after_space,
                    Scan::wide_cjk_runs, Scan::digits}};
  }
  if (any({"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"})) {
    return PreKind{{Scan::numeric, Scan::gpt2}};
  }
  if (any({"falcon"})) return PreKind{{Scan::falcon_punctuation, Scan::gpt2, Scan::ascii_digit_triples}};
  if (any({"default"})) {
    return PreKind{{Scan::default_punctuation, Scan::gpt2, Scan::digit_runs, Scan::ascii_digit_triples}};
  }
  return std::nullopt;
}

}  // namespace kvasir::tokenizer
