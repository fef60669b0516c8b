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
#include "tokenizer/gguf_encoders.h"
#include "tokenizer/gguf_pre_kinds.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

using Parts = TokenizerBuilder::Parts;

constexpr size_t kMostTokens = 4'194'304;
constexpr size_t kLongestToken = 65'536;

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

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

class Loader {
 public:
  explicit Loader(const GgufTokenizerData& data) : data_(data), parts_(std::make_unique<Parts>()) {}

  Tokenizer load() {
    if (!data_.huggingface_json.empty() && load_huggingface())
      return TokenizerBuilder::finish(std::move(parts_));
    const std::string_view kind = data_.model;
    if (kind == "none" || kind == "no_vocab" || kind.empty()) {
      throw_error(ErrorCode::unsupported, "the GGUF file has no tokenizer (tokenizer.ggml.model is {})",
                  kind.empty() ? "missing" : printable(kind));
    }
    const bool known =
        kind == "gpt2" || kind == "llama" || kind == "bert" || kind == "t5" || kind == "gemma4";
    if (!known) {
      throw_error(ErrorCode::unsupported,
                  "unknown tokenizer: '{}': gpt2, llama, bert, t5 and gemma4 are supported", printable(kind));
    }
    check();
    load_tokens();
    if (kind == "gpt2") load_gpt2();
    if (kind == "llama") load_llama();
    if (kind == "bert") load_bert();
    if (kind == "t5") load_t5();
    if (kind == "gemma4") load_gemma4();
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
    // Hashes are computed a block ahead, so that the cache misses of the table overlap.
    constexpr size_t kBlock = 32;
    std::array<uint64_t, kBlock> hashes;
    std::string stand_in;
    for (size_t i = 0; i < n; ++i) {
      if (i % kBlock == 0) {
        for (size_t k = i; k < std::min(n, i + kBlock); ++k) {
          hashes[k - i] = Vocabulary::hash(data_.tokens[k]);
          p.vocabulary.prefetch(hashes[k - i]);
        }
      }
      std::string_view text = data_.tokens[i];
      uint64_t hash = hashes[i % kBlock];
      if (text.size() > kLongestToken) {
        throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: token {} has {} bytes, the limit is {}", i,
                    text.size(), kLongestToken);
      }
      if (text.empty()) {
        stand_in = fmt::format("[EMPTY_{}]", i);
        text = stand_in;
        hash = Vocabulary::hash(text);
        p.kinds[i] = TokenKind::unused;
      }
      const int32_t other = p.vocabulary.add(text, static_cast<int32_t>(i), hash);
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
    if (*value < 0 || *value >= parts_->size) {
      warn("GGUF tokenizer: tokenizer.ggml.{} = {} is no id of {} tokens; ignored", key, *value,
           parts_->size);
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
  void make_matcher(bool spaces, bool user_defined = true) {
    Parts& p = *parts_;
    // Some files type the tokens that end a turn as normal. In that spelling nothing else can be meant.
    for (std::string_view text : kEndTexts) {
      const int32_t token_id = p.vocabulary.find(text);
      if (token_id < 0 || !text.starts_with("<|") || !text.ends_with("|>")) continue;
      TokenKind& kind = p.kinds[static_cast<size_t>(token_id)];
      if (kind == TokenKind::normal || kind == TokenKind::undefined) kind = TokenKind::control;
    }
    std::vector<AddedToken> added;
    for (size_t i = 0; i < p.kinds.size(); ++i) {
      const TokenKind kind = p.kinds[i];
      const auto token_id = static_cast<int32_t>(i);
      p.special[i] = kind == TokenKind::control || kind == TokenKind::unknown;
      p.hidden[i] = kind == TokenKind::unused;
      if (!p.special[i] && (kind != TokenKind::user_defined || !user_defined)) continue;
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

  std::unique_ptr<BpeModel> make_bpe(BpeOptions options) {
    if (data_.merges.empty()) {
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: {} needs tokenizer.ggml.merges", data_.model);
    }
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
    options.first_merge_counts = true;
    options.lenient_merges = true;
    auto model = std::make_unique<BpeModel>(parts_->vocabulary, merges, std::move(options));
    if (model->odd_merges() > 0)
      warn("GGUF tokenizer: {} texts of merges are no tokens", model->odd_merges());
    return model;
  }

  void need_scores() {
    if (data_.scores.empty()) {
      throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: {} needs tokenizer.ggml.scores", data_.model);
    }
    parts_->scores.assign(data_.scores.begin(),
                          data_.scores.begin() + static_cast<ptrdiff_t>(data_.tokens.size()));
  }

  void load_gpt2() {
    Parts& p = *parts_;
    if (!data_.pre) warn("GGUF tokenizer: no tokenizer.ggml.pre; the pre-tokenizer is \"default\"");
    const std::optional<PreKind> kind = pre_kind(data_.pre.value_or("default"));
    if (!kind) {
      throw_error(ErrorCode::unsupported,
                  "unknown pre-tokenizer type: {}: text cannot be split as this model expects it",
                  printable(*data_.pre));
    }
    if (kind->default_bos) p.bos = id_or(data_.bos, "bos_token_id", 11);
    if (!kind->default_bos) p.bos = id(data_.bos, "bos_token_id");
    p.eos = id_or(data_.eos, "eos_token_id", 11);
    p.unknown = id(data_.unknown, "unknown_token_id");
    p.pad = id(data_.padding, "padding_token_id");
    make_matcher(false);

    BpeOptions options;
    options.byte_level = true;
    options.ignore_merges = kind->ignore_merges;
    p.encoder = std::make_unique<ScannedBpe>(kind->steps, make_bpe(options));
    p.decoder = std::make_unique<ByteLevelDecoder>(true);
    std::optional<int32_t> separator;
    if (data_.add_separator.value_or(kind->add_separator))
      separator = id(data_.separator, "seperator_token_id");
    make_frame(data_.add_bos.value_or(kind->add_bos), data_.add_eos.value_or(false), separator);
  }

  void load_llama() {
    Parts& p = *parts_;
    need_scores();
    p.bos = id_or(data_.bos, "bos_token_id", 1);
    p.eos = id_or(data_.eos, "eos_token_id", 2);
    p.unknown = id_or(data_.unknown, "unknown_token_id", 0);
    p.pad = id(data_.padding, "padding_token_id");
    make_matcher(true);
    const bool prefix = data_.add_space_prefix.value_or(true);
    p.prefix_space = prefix;
    p.encoder = std::make_unique<SpmEncoder>(
        std::make_unique<SpmModel>(p.vocabulary, p.scores, p.kinds, p.unknown.value_or(-1)), prefix);
    p.decoder = std::make_unique<SentencepieceDecoder>(prefix);
    make_frame(data_.add_bos.value_or(true), data_.add_eos.value_or(false), std::nullopt);
  }

  void load_bert() {
    Parts& p = *parts_;
    p.bos = id_or(data_.cls ? data_.cls : data_.bos, "bos_token_id", 101);
    p.eos = id(data_.eos, "eos_token_id");
    p.unknown = id_or(data_.unknown, "unknown_token_id", 100);
    p.pad = id_or(data_.padding, "padding_token_id", 0);
    const std::optional<int32_t> separator = id_or(data_.separator, "seperator_token_id", 102);
    make_matcher(false);
    WordPieceModel::Options options;
    if (!p.unknown) throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: bert needs an unknown token");
    options.unknown_token = p.vocabulary.text(*p.unknown);
    options.prefix.clear();
    options.start = "\xE2\x96\x81";
    const bool lowercase = data_.lowercase.value_or(true);
    p.encoder = std::make_unique<BertEncoder>(std::make_unique<WordPieceModel>(p.vocabulary, options),
                                              lowercase, data_.strip_accents.value_or(lowercase));
    p.decoder = std::make_unique<MarkedWordDecoder>();
    make_frame(true, false, separator);
  }

  void load_t5() {
    Parts& p = *parts_;
    need_scores();
    p.bos = id(data_.bos, "bos_token_id");
    p.eos = id_or(data_.eos, "eos_token_id", 1);
    p.unknown = id_or(data_.unknown, "unknown_token_id", 2);
    p.pad = id_or(data_.padding, "padding_token_id", 0);
    if (!p.unknown) throw_error(ErrorCode::corrupt_file, "GGUF tokenizer: t5 needs an unknown token");
    make_matcher(true, false);

    std::vector<UnigramModel::Token> tokens;
    std::vector<Trie::Item> verbatim;
    // Sentencepiece looks for the highest score from the smallest positive number on, so scores being
    // negative it is that.
    float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::min();
    for (size_t i = 0; i < p.kinds.size(); ++i) {
      if (p.kinds[i] != TokenKind::normal) continue;
      lowest = std::min(lowest, p.scores[i]);
      highest = std::max(highest, p.scores[i]);
    }
    for (size_t i = 0; i < p.kinds.size(); ++i) {
      const TokenKind kind = p.kinds[i];
      const auto token_id = static_cast<int32_t>(i);
      const std::string_view text = p.vocabulary.text(token_id);
      if (kind == TokenKind::user_defined) verbatim.push_back({text, token_id});
      if (kind == TokenKind::normal || kind == TokenKind::user_defined || kind == TokenKind::unused) {
        // Its score for user-defined tokens: practically -0.1, better than any way to spell them.
        const double user_defined =
            static_cast<float>(double{static_cast<float>(text.size()) * highest} - 0.1);
        tokens.push_back(
            {text, token_id, kind == TokenKind::user_defined ? user_defined : double{p.scores[i]}});
      }
    }
    UnigramModel::Options options;
    options.unknown = *p.unknown;
    options.unknown_score = double{lowest - 10.0f};
    options.look_up_unknown = false;
    options.single_precision = true;
    UnigramEncoder::Options how;
    how.add_space_prefix = data_.add_space_prefix.value_or(false);
    how.remove_extra_spaces = data_.remove_extra_whitespaces.value_or(false);
    if (!data_.precompiled_charsmap.empty()) {
      how.map.emplace(data_.precompiled_charsmap, "GGUF tokenizer: tokenizer.ggml.precompiled_charsmap");
    }
    how.verbatim = Trie(std::move(verbatim));
    const bool strip = how.add_space_prefix || how.remove_extra_spaces;
    p.encoder = std::make_unique<UnigramEncoder>(
        std::make_unique<UnigramModel>(p.vocabulary, tokens, options), std::move(how));
    p.decoder = std::make_unique<SentencepieceDecoder>(strip);
    make_frame(data_.add_bos.value_or(false), data_.add_eos.value_or(true), std::nullopt);
  }

  void load_gemma4() {
    Parts& p = *parts_;
    p.bos = id(data_.bos, "bos_token_id");
    p.eos = id(data_.eos, "eos_token_id");
    p.unknown = id(data_.unknown, "unknown_token_id");
    p.pad = id(data_.padding, "padding_token_id");
    make_matcher(true);
    BpeOptions options;
    options.byte_fallback = true;
    options.fuse_unknown = true;
    if (p.unknown) options.unknown_token = p.vocabulary.text(*p.unknown);
    p.encoder = std::make_unique<LineBpe>(p.vocabulary, make_bpe(options));
    p.decoder = std::make_unique<SentencepieceDecoder>(false);
    make_frame(true, data_.add_eos.value_or(false), std::nullopt);
  }

  // A whole tokenizer.json inside the file. Whether BOS is put in front, and which tokens have roles, is
  // still the metadata's to say. False where the text is no tokenizer that can be loaded.
  bool load_huggingface() {
    TokenizerFiles files;
    files.tokenizer_json = data_.huggingface_json;
    files.name = "tokenizer.huggingface.json";
    try {
      parts_ = TokenizerBuilder::load_json(files);
    } catch (const Error& e) {
      if (data_.model.empty() || data_.tokens.empty()) throw;
      warn("{}; the tokenizer.ggml entries are used instead", e.what());
      return false;
    }
    const auto take = [&](std::optional<int64_t> value, std::optional<int32_t>& out) {
      if (value && *value >= 0 && *value < parts_->size) out = static_cast<int32_t>(*value);
    };
    take(data_.bos, parts_->bos);
    take(data_.eos, parts_->eos);
    take(data_.padding, parts_->pad);
    take(data_.unknown, parts_->unknown);
    if (data_.add_bos || data_.add_eos)
      make_frame(data_.add_bos.value_or(false), data_.add_eos.value_or(false), std::nullopt);
    end_of_generation();
    return true;
  }

  // Tokens that end a generation: those the file names, and those whose text says so.
  void end_of_generation() {
    Parts& p = *parts_;
    std::vector<int32_t> named, by_text;
    const auto find = [&](std::string_view text) {
      const int32_t token = p.added.find(text);
      return token >= 0 ? token : p.vocabulary.find(text);
    };
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
