// Tokenizers out of GGUF metadata. The key meanings, defaults and lists of names are those of the GGUF
// format's reference implementation; the encodings are the publishers' (sentencepiece, tokenizers).
#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/parts.h"
#include "tokenizer/scanner.h"
#include "tokenizer/spm.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

using Parts = TokenizerBuilder::Parts;

constexpr size_t kMostTokens = 4'194'304;
constexpr size_t kLongestToken = 65'536;

// What a value of tokenizer.ggml.pre means.
struct PreKind {
  std::vector<Scan> steps;
  bool ignore_merges = false, add_bos = false, add_separator = false, default_bos = true;
};

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

// Tokens that end a turn or a text wherever they appear in a vocabulary.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|calls|>",
                                          "<|flush|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "</s>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<|end_of_text|>",
                                          "<end_of_utterance>",
                                          "<eos>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<｜end▁of▁sentence｜>",
                                          "[e~["};
constexpr std::string_view kFimPaddingTexts[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::string_view kFimRepositoryTexts[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                                    "<reponame>"};
constexpr std::string_view kFimSeparatorTexts[] = {"<|file_sep|>"};

// Byte-level BPE: scans, then merges.
class ScannedBpe final : public TextEncoder {
 public:
  ScannedBpe(std::vector<Scan> steps, std::unique_ptr<BpeModel> model)
      : steps_(std::move(steps)), model_(std::move(model)) {}

  void encode(std::string_view text, const Place&, Workspace& workspace,
              std::vector<int32_t>& ids) const override {
    std::string repaired;
    if (!is_valid_utf8(text)) {
      repaired = replace_invalid_structural(text);
      text = repaired;
    }
    std::vector<uint32_t>&ends = workspace.ends, &more = workspace.more_ends;
    ends.clear();
    scan(steps_[0], text, 0, ends);
    for (size_t step = 1; step < steps_.size(); ++step) {
      more.clear();
      uint32_t begin = 0;
      for (uint32_t end : ends) {
        scan(steps_[step], text.substr(begin, end - begin), begin, more);
        begin = end;
      }
      ends.swap(more);
    }
    uint32_t begin = 0;
    for (uint32_t end : ends) {
      model_->encode(text.substr(begin, end - begin), workspace, ids);
      begin = end;
    }
  }
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::vector<Scan> steps_;
  std::unique_ptr<BpeModel> model_;
};

class SpmEncoder final : public TextEncoder {
 public:
  SpmEncoder(std::unique_ptr<SpmModel> model, bool add_space_prefix)
      : model_(std::move(model)), add_space_prefix_(add_space_prefix) {}

  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override {
    std::string& marked = workspace.text;
    marked.clear();
    if (add_space_prefix_ && place.after_token) marked += "\xE2\x96\x81";
    for (size_t i = 0; i < text.size();) {
      const size_t space = std::min(text.find(' ', i), text.size());
      marked.append(text, i, space - i);
      if (space < text.size()) marked += "\xE2\x96\x81";
      i = space + 1;
    }
    model_->encode(marked, workspace, ids);
  }
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::unique_ptr<SpmModel> model_;
  bool add_space_prefix_;
};

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

class Loader {
 public:
  explicit Loader(const GgufTokenizerData& data) : data_(data), parts_(std::make_unique<Parts>()) {}

  Tokenizer load() {
    check();
    if (data_.model == "gpt2") {
      load_gpt2();
    } else if (data_.model == "llama") {
      load_llama();
    } else {
      throw_error(ErrorCode::unsupported,
                  "GGUF tokenizer model {} is not supported: gpt2, llama, bert, t5 and gemma4 are (or "
                  "convert the model "
                  "with a tokenizer.huggingface.json entry)",
                  printable(data_.model));
    }
    end_of_generation();
    return TokenizerBuilder::finish(std::move(parts_));
  }

 private:
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    parts_->warnings.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check() {
    const size_t n = data_.tokens.size();
    if (n == 0)
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: tokenizer.ggml.tokens is missing or empty");
    if (n > kMostTokens) {
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: {} tokens, the limit is {}", n, kMostTokens);
    }
    if (!data_.scores.empty() && data_.scores.size() < n) {
      throw_error(ErrorCode::corrupt_file,
                  "GGUF tokenizer: tokenizer.ggml.scores has {} entries for {} tokens", data_.scores.size(),
                  n);
    }
    if (!data_.token_types.empty() && data_.token_types.size() < n) {
      throw_error(ErrorCode::corrupt_file,
                  "GGUF tokenizer: tokenizer.ggml.token_type has {} entries for {} tokens",
                  data_.token_types.size(), n);
    }
  }

  // Texts, kinds, scores. `spell`: how a text goes into the vocabulary.
  void load_tokens() {
    Parts& p = *parts_;
    const size_t n = data_.tokens.size();
    size_t bytes = 0;
    for (std::string_view t : data_.tokens) bytes += t.size();
    p.vocabulary.reserve(n, bytes + 16);
    p.kinds.assign(n, TokenKind::normal);
    for (size_t i = 0; i < std::min(n, data_.token_types.size()); ++i) {
      const int32_t type = data_.token_types[i];
      p.kinds[i] = type >= 0 && type <= 6 ? static_cast<TokenKind>(type) : TokenKind::undefined;
    }
    std::string placeholder;
    for (size_t i = 0; i < n; ++i) {
      std::string_view text = data_.tokens[i];
      if (text.size() > kLongestToken) {
        throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: token {} has {} bytes, the limit is {}", i,
                    text.size(), kLongestToken);
      }
      if (text.empty()) {
        placeholder = fmt::format("[EMPTY_{}]", i);
        text = placeholder;
        p.kinds[i] = TokenKind::unused;
      }
      const int32_t other = p.vocabulary.add(text, static_cast<int32_t>(i));
      if (other != Vocabulary::kNone) {
        throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: tokens {} and {} are the same: {}", other, i,
                    printable(text));
      }
    }
    p.size = static_cast<int32_t>(n);
    p.special.assign(n, false);
    p.hidden.assign(n, false);
  }

  std::optional<int32_t> id(std::optional<int64_t> value, std::string_view key) {
    if (!value) return std::nullopt;
    if (*value < 0 || static_cast<uint64_t>(*value) >= data_.tokens.size()) {
      warn("GGUF tokenizer: tokenizer.ggml.{} = {} is no id of {} tokens; ignored", key, *value,
           data_.tokens.size());
      return std::nullopt;
    }
    return static_cast<int32_t>(*value);
  }
  std::optional<int32_t> id_or(std::optional<int64_t> value, std::string_view key, int32_t fallback) {
    if (const auto given = id(value, key)) return given;
    if (fallback < 0 || static_cast<size_t>(fallback) >= data_.tokens.size()) return std::nullopt;
    return fallback;
  }

  // Control, user-defined and unknown tokens are looked for in the text. `spaces`: user-defined ones are
  // written there with spaces where the vocabulary may have U+2581.
  void make_matcher(bool spaces) {
    Parts& p = *parts_;
    std::vector<AddedToken> added;
    for (size_t i = 0; i < p.kinds.size(); ++i) {
      const TokenKind kind = p.kinds[i];
      const auto token_id = static_cast<int32_t>(i);
      p.special[i] = kind == TokenKind::control || kind == TokenKind::unknown;
      p.hidden[i] = kind == TokenKind::unused;
      if (!p.special[i] && kind != TokenKind::user_defined) continue;
      AddedToken token;
      token.content = p.vocabulary.text(token_id);
      token.id = token_id;
      token.special = p.special[i];
      if (spaces && kind == TokenKind::user_defined) {
        for (size_t at; (at = token.content.find("\xE2\x96\x81")) != std::string::npos;)
          token.content.replace(at, 3, " ");
      }
      p.added.add(p.vocabulary.text(token_id), token_id);
      added.push_back(std::move(token));
    }
    p.matcher = AddedTokenMatcher(std::move(added), AddedTokenMatcher::Rule::longest_first);
    p.repair_text = false;

    const std::string name = lower_ascii(data_.general_name);
    if (name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos) {
      p.drop_space_after_special = true;
      for (std::string_view text : {"<unk>", "<s>", "<|endoftext|>"}) {
        const int32_t keep = p.vocabulary.find(text);
        if (keep >= 0) p.keep_space_after.push_back(keep);
      }
    }
  }

  void make_frame(bool add_bos, bool add_eos, std::optional<int32_t> separator) {
    Parts& p = *parts_;
    p.frame.clear();
    if (add_bos && p.bos) p.frame.push_back(*p.bos);
    p.frame.push_back(-1);
    if (add_eos && p.eos) p.frame.push_back(*p.eos);
    if (separator) p.frame.push_back(*separator);
    p.one_bos = true;
  }

  void load_gpt2() {
    Parts& p = *parts_;
    if (data_.merges.empty())
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: gpt2 needs tokenizer.ggml.merges");
    if (!data_.pre) warn("GGUF tokenizer: no tokenizer.ggml.pre; the pre-tokenizer is \"default\"");
    const std::optional<PreKind> kind = pre_kind(data_.pre.value_or("default"));
    if (!kind) {
      throw_error(ErrorCode::unsupported,
                  "unknown pre-tokenizer type: {}: text cannot be split as this model expects it",
                  printable(*data_.pre));
    }
    load_tokens();
    if (kind->default_bos) p.bos = id_or(data_.bos, "bos_token_id", 11);
    if (!kind->default_bos) p.bos = id(data_.bos, "bos_token_id");
    p.eos = id_or(data_.eos, "eos_token_id", 11);
    p.unknown = id(data_.unknown, "unknown_token_id");
    p.pad = id(data_.padding, "padding_token_id");
    make_matcher(false);

    std::vector<BpeModel::MergeText> merges;
    merges.reserve(data_.merges.size());
    for (size_t i = 0; i < data_.merges.size(); ++i) {
      const std::string_view m = data_.merges[i];
      const size_t space = m.find(' ', 1);
      if (m.empty() || space == std::string_view::npos) {
        throw_error(ErrorCode::corrupt_file,
                    "GGUF tokenizer: merge {} is {}: expected two texts with a space between", i,
                    printable(m));
      }
      merges.push_back({m.substr(0, space), m.substr(space + 1)});
    }
    BpeOptions options;
    options.byte_level = true;
    options.ignore_merges = kind->ignore_merges;
    options.first_merge_counts = true;
    options.lenient_merges = true;
    auto model = std::make_unique<BpeModel>(p.vocabulary, merges, options);
    if (model->odd_merges() > 0) {
      warn("GGUF tokenizer: {} texts of merges are no tokens", model->odd_merges());
    }
    p.encoder = std::make_unique<ScannedBpe>(kind->steps, std::move(model));
    p.decoder = std::make_unique<ByteLevelDecoder>(true);
    std::optional<int32_t> separator;
    if (data_.add_separator.value_or(kind->add_separator))
      separator = id(data_.separator, "seperator_token_id");
    make_frame(data_.add_bos.value_or(kind->add_bos), data_.add_eos.value_or(false), separator);
  }

  void load_llama() {
    Parts& p = *parts_;
    load_tokens();
    const size_t n = data_.tokens.size();
    p.scores.assign(n, 0.0f);
    if (data_.scores.empty()) {
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: llama needs tokenizer.ggml.scores");
    }
    std::copy_n(data_.scores.begin(), n, p.scores.begin());
    p.bos = id_or(data_.bos, "bos_token_id", 1);
    p.eos = id_or(data_.eos, "eos_token_id", 2);
    p.unknown = id_or(data_.unknown, "unknown_token_id", 0);
    p.pad = id(data_.padding, "padding_token_id");
    make_matcher(true);
    const bool prefix = data_.add_space_prefix.value_or(true);
    p.encoder = std::make_unique<SpmEncoder>(
        std::make_unique<SpmModel>(p.vocabulary, p.scores, p.kinds, p.unknown.value_or(-1)), prefix);
    p.decoder = std::make_unique<SentencepieceDecoder>(prefix);
    make_frame(data_.add_bos.value_or(true), data_.add_eos.value_or(false), std::nullopt);
  }

  // Tokens that end a generation: those the file names, and those whose text says so.
  void end_of_generation() {
    Parts& p = *parts_;
    std::vector<int32_t> named, by_text;
    const auto find = [&](std::string_view text) { return p.vocabulary.find(text); };
    const auto role = [&](std::optional<int64_t> value, std::string_view key, auto& texts) {
      std::optional<int32_t> token = id(value, key);
      if (token) {
        named.push_back(*token);
        return;
      }
      for (std::string_view text : texts) {
        if (find(text) >= 0) return by_text.push_back(find(text));
      }
    };
    if (p.eos) named.push_back(*p.eos);
    if (const auto t = id(data_.eot, "eot_token_id")) named.push_back(*t);
    if (const auto t = id(data_.eom, "eom_token_id")) named.push_back(*t);
    role(data_.fim_padding, "fim_pad_token_id", kFimPaddingTexts);
    role(data_.fim_repository, "fim_rep_token_id", kFimRepositoryTexts);
    role(data_.fim_separator, "fim_sep_token_id", kFimSeparatorTexts);

    const bool calls = find("<|call|>") >= 0 || find("<|calls|>") >= 0;
    const bool returns = find("<|return|>") >= 0 || find("<|flush|>") >= 0;
    const bool other_end = find("<|tool_response>") >= 0 || find("<|plamo:eos|>") >= 0;
    for (std::string_view text : kEndTexts) {
      if (find(text) < 0) continue;
      if (text == "<|end|>" && calls && returns) continue;
      if (text == "</s>" && other_end) continue;
      by_text.push_back(find(text));
    }
    p.eog = named;
    p.eog.insert(p.eog.end(), by_text.begin(), by_text.end());
    std::sort(p.eog.begin(), p.eog.end());
    p.eog.erase(std::unique(p.eog.begin(), p.eog.end()), p.eog.end());
  }

  const GgufTokenizerData& data_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace

std::span<const std::string_view> end_texts() {
  return kEndTexts;
}

Tokenizer Tokenizer::from_gguf(const GgufTokenizerData& data) {
  return Loader(data).load();
}

}  // namespace kvasir::tokenizer
