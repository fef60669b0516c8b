#include "tokenizer/json_components.h"

#include <algorithm>

#include "tokenizer/base64.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/decoder_chain.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr uint64_t kMostCharacters = 1'000'000'000;

// The one character that a member holds.
std::string one_character(const JsonValue& json) {
  const std::string_view text = json.string();
  if (text.empty() || utf8_length(text[0]) != text.size()) json.wrong("one character");
  return std::string(text);
}

// {"String": ...} or {"Regex": ...}, given to one of two makers.
template <typename Literal, typename Pattern>
auto with_pattern(const JsonValue& json, Literal&& literal, Pattern&& pattern) {
  if (const auto text = json.find("String")) {
    if (text->string().empty()) text->wrong("a text that is not empty");
    return literal(std::string(text->string()));
  }
  const JsonValue regex = json.at("Regex");
  return pattern(regex.string(), regex.path());
}

std::unique_ptr<Normalizer> normalizer(const JsonValue& json, size_t depth) {
  check_depth(json, depth);
  const std::string_view type = json.at("type").string();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    const JsonValue list = json.at("normalizers");
    size_t i = 0;
    for (auto element : list.array()) steps.push_back(normalizer(list.item(element, i++), depth + 1));
    return std::make_unique<SequenceNormalizer>(std::move(steps));
  }
  if (type == "NFC") return std::make_unique<NormalFormNormalizer>(NormalForm::nfc);
  if (type == "NFD") return std::make_unique<NormalFormNormalizer>(NormalForm::nfd);
  if (type == "NFKC") return std::make_unique<NormalFormNormalizer>(NormalForm::nfkc);
  if (type == "NFKD") return std::make_unique<NormalFormNormalizer>(NormalForm::nfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(json.at("strip_left").boolean(),
                                             json.at("strip_right").boolean());
  }
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(std::string(json.at("prepend").string()));
  if (type == "Replace") {
    const std::string content(json.at("content").string());
    return with_pattern(
        json.at("pattern"),
        [&](std::string text) { return std::make_unique<ReplaceNormalizer>(std::move(text), content); },
        [&](std::string_view pattern, const std::string& where) {
          return std::make_unique<ReplaceNormalizer>(Regex(pattern, where), content);
        });
  }
  if (type == "BertNormalizer") {
    const bool lower = json.at("lowercase").boolean();
    return std::make_unique<BertNormalizer>(json.at("clean_text").boolean(),
                                            json.at("handle_chinese_chars").boolean(),
                                            json.boolean_or("strip_accents", lower), lower);
  }
  if (type == "Precompiled") {
    const JsonValue text = json.at("precompiled_charsmap");
    const auto bytes = decode_base64(text.string());
    if (!bytes) text.wrong("base64");
    return std::make_unique<PrecompiledNormalizer>(Charsmap(*bytes, text.path()));
  }
  unknown_type(json, "normalizer", type);
}

SplitBehavior behavior_of(const JsonValue& json) {
  const std::string_view name = json.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  json.wrong("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

PrependScheme prepend_scheme_of(const JsonValue& json) {
  PrependScheme scheme = PrependScheme::always;
  if (const auto name = json.find("prepend_scheme")) {
    if (name->string() == "first") {
      scheme = PrependScheme::first;
    } else if (name->string() == "never") {
      scheme = PrependScheme::never;
    } else if (name->string() != "always") {
      name->wrong("always, first or never");
    }
  }
  // The older member may only say what the newer one says.
  if (!json.boolean_or("add_prefix_space", true) && scheme != PrependScheme::never) {
    json.fail(ErrorCode::corrupt_file, "add_prefix_space false needs prepend_scheme \"never\"");
  }
  return scheme;
}

std::unique_ptr<PreTokenizer> split_by(CharacterTest test, bool runs, SplitBehavior behavior) {
  return std::make_unique<SplitPreTokenizer>(character_splitter(test, runs), behavior, false);
}

std::unique_ptr<PreTokenizer> pre_tokenizer(const JsonValue& json, size_t depth, bool map_last) {
  check_depth(json, depth);
  const std::string_view type = json.at("type").string();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    const JsonValue list = json.at("pretokenizers");
    const auto array = list.array();
    size_t i = 0;
    for (auto element : array) {
      const bool last = i + 1 == array.size();
      steps.push_back(pre_tokenizer(list.item(element, i), depth + 1, map_last || !last));
      ++i;
    }
    return std::make_unique<SequencePreTokenizer>(std::move(steps));
  }
  if (type == "ByteLevel") {
    json.at("trim_offsets").boolean();
    return std::make_unique<ByteLevelPreTokenizer>(json.at("add_prefix_space").boolean(),
                                                   json.boolean_or("use_regex", true), map_last);
  }
  if (type == "Split") {
    const SplitBehavior behavior = behavior_of(json.at("behavior"));
    const bool invert = json.boolean_or("invert", false);
    return with_pattern(
        json.at("pattern"),
        [&](std::string text) -> std::unique_ptr<PreTokenizer> {
          return std::make_unique<SplitPreTokenizer>(literal_splitter(std::move(text)), behavior, invert);
        },
        [&](std::string_view pattern, const std::string& where) -> std::unique_ptr<PreTokenizer> {
          // Isolated pieces are the same inverted. A pattern that covers every text leaves nothing for the
          // other behaviours to treat differently but for "removed", which would remove all.
          const auto known = scanner_for(pattern);
          if (known && behavior == SplitBehavior::isolated) return std::make_unique<ScanPreTokenizer>(*known);
          if (known && behavior == SplitBehavior::removed && invert && covers_all(*known)) {
            return std::make_unique<ScanPreTokenizer>(*known);
          }
          return std::make_unique<SplitPreTokenizer>(regex_splitter(Regex(pattern, where)), behavior, invert);
        });
  }
  if (type == "Metaspace") {
    return std::make_unique<MetaspacePreTokenizer>(one_character(json.at("replacement")),
                                                   prepend_scheme_of(json), json.boolean_or("split", true));
  }
  if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean();
    return split_by(is_numeric, !individual,
                    individual ? SplitBehavior::isolated : SplitBehavior::contiguous);
  }
  if (type == "Punctuation") {
    const auto behavior = json.find("behavior");
    return split_by(is_punctuation_mark, false, behavior ? behavior_of(*behavior) : SplitBehavior::isolated);
  }
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit") return split_by(is_white_space, false, SplitBehavior::removed);
  if (type == "BertPreTokenizer") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    steps.push_back(split_by(is_white_space, false, SplitBehavior::removed));
    steps.push_back(split_by(is_punctuation_mark, false, SplitBehavior::isolated));
    return std::make_unique<SequencePreTokenizer>(std::move(steps));
  }
  if (type == "CharDelimiterSplit") {
    return std::make_unique<SplitPreTokenizer>(literal_splitter(one_character(json.at("delimiter"))),
                                               SplitBehavior::removed, false);
  }
  if (type == "FixedLength") {
    const auto length = json.find("length");
    const uint64_t n = length ? length->count(kMostCharacters) : 5;
    if (n == 0) json.fail(ErrorCode::corrupt_file, "length 0: pieces would be empty");
    return std::make_unique<FixedLengthPreTokenizer>(n);
  }
  if (type == "UnicodeScripts") return std::make_unique<UnicodeScriptsPreTokenizer>();
  unknown_type(json, "pre-tokenizer", type);
}

// How many ByteLevel steps there are; `last`: whether the very last step is one.
size_t byte_level_steps(const JsonValue& json, size_t depth, bool& last) {
  check_depth(json, depth);
  const std::string_view type = json.at("type").string();
  last = type == "ByteLevel";
  if (type != "Sequence") return last ? 1 : 0;
  const JsonValue list = json.at("pretokenizers");
  size_t count = 0, i = 0;
  for (auto element : list.array()) count += byte_level_steps(list.item(element, i++), depth + 1, last);
  return count;
}

void decode_steps(const JsonValue& json, size_t depth, std::vector<std::unique_ptr<DecodeStep>>& steps) {
  check_depth(json, depth);
  const std::string_view type = json.at("type").string();
  if (type == "Sequence") {
    const JsonValue list = json.at("decoders");
    size_t i = 0;
    for (auto element : list.array()) decode_steps(list.item(element, i++), depth + 1, steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevelStep>());
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<ByteFallbackStep>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<FuseStep>());
  } else if (type == "Replace") {
    const std::string content(json.at("content").string());
    steps.push_back(with_pattern(
        json.at("pattern"),
        [&](std::string text) { return std::make_unique<ReplaceStep>(std::move(text), content); },
        [&](std::string_view pattern, const std::string& where) {
          return std::make_unique<ReplaceStep>(Regex(pattern, where), content);
        }));
  } else if (type == "Strip") {
    steps.push_back(std::make_unique<StripStep>(one_character(json.at("content")),
                                                json.at("start").count(kMostCharacters),
                                                json.at("stop").count(kMostCharacters)));
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<MetaspaceStep>(one_character(json.at("replacement")),
                                                    prepend_scheme_of(json) != PrependScheme::never));
  } else if (type == "WordPiece") {
    steps.push_back(std::make_unique<WordPieceStep>(std::string(json.at("prefix").string()),
                                                    json.at("cleanup").boolean()));
  } else if (type == "BPEDecoder") {
    steps.push_back(std::make_unique<BpeStep>(std::string(json.at("suffix").string())));
  } else if (type == "CTC") {
    steps.push_back(std::make_unique<CtcStep>(std::string(json.at("pad_token").string()),
                                              std::string(json.at("word_delimiter_token").string()),
                                              json.at("cleanup").boolean()));
  } else {
    unknown_type(json, "decoder", type);
  }
}

}  // namespace

void check_depth(const JsonValue& json, size_t depth) {
  constexpr size_t kDeepestSequence = 16;
  if (depth > kDeepestSequence) {
    json.fail(ErrorCode::corrupt_file, fmt::format("sequences nest deeper than {}", kDeepestSequence));
  }
}

void unknown_type(const JsonValue& json, std::string_view what, std::string_view type) {
  json.fail(ErrorCode::unsupported, fmt::format("{} type {} is unknown", what, printable(type)));
}

std::unique_ptr<Normalizer> load_normalizer(const JsonValue& json) {
  return normalizer(json, 0);
}

std::unique_ptr<PreTokenizer> load_pre_tokenizer(const JsonValue& json, bool byte_level_model) {
  return pre_tokenizer(json, 0, !byte_level_model);
}

bool ends_in_byte_level(const JsonValue& json) {
  bool last = false;
  return byte_level_steps(json, 0, last) == 1 && last;
}

std::unique_ptr<Decoder> load_decoder(const JsonValue& json) {
  std::vector<std::unique_ptr<DecodeStep>> steps;
  decode_steps(json, 0, steps);
  return std::make_unique<ChainDecoder>(std::move(steps));
}

}  // namespace kvasir::tokenizer
