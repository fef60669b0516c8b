#include "tokenizer/post_processor.h"

#include <utility>

#include "base/error.h"
#include "tokenizer/json_components.h"

namespace kvasir::tokenizer {
namespace {

constexpr size_t kMostTokens = 1024;

// The package's processors take a list of encodings and give another. It begins with the text alone; a
// template makes an encoding of each of its pieces, which are what the next processor of a sequence sees:
// another template takes two of them for a pair of texts, and what puts tokens around a text puts them around
// each (Rust library, processors/sequence.rs, template.rs, bert.rs, roberta.rs).
using Encodings = std::vector<std::vector<int32_t>>;

void apply_template(const JsonValue& json, bool special, Encodings& encodings) {
  if (encodings.empty() || encodings.size() > 2) {
    json.fail(ErrorCode::corrupt_file,
              fmt::format("the processors before this template give it {} texts, expected one or two",
                          encodings.size()));
  }
  const JsonValue pieces = json.at(encodings.size() == 1 ? "single" : "pair");
  Encodings out;
  size_t i = 0;
  for (auto element : pieces.array()) {
    const JsonValue piece = pieces.item(element, i++);
    if (const auto sequence = piece.find("Sequence")) {
      const JsonValue id = sequence->at("id");
      const size_t text = id.string() == "A" ? 0 : id.string() == "B" ? 1 : 2;
      if (text >= encodings.size()) {
        id.fail(ErrorCode::corrupt_file, fmt::format("text {} of {}, expected A{}", printable(id.string()),
                                                     encodings.size(), encodings.size() == 2 ? " or B" : ""));
      }
      out.push_back(encodings[text]);
      continue;
    }
    const JsonValue name = piece.at("SpecialToken").at("id");
    const JsonValue known = json.at("special_tokens");
    simdjson::dom::element token;
    if (known.object().at_key(name.string()).get(token)) {
      name.fail(ErrorCode::corrupt_file,
                fmt::format("{} is not in special_tokens", printable(name.string())));
    }
    if (!special) continue;
    std::vector<int32_t>& ids = out.emplace_back();
    const JsonValue list = known.member(token, name.string()).at("ids");
    size_t k = 0;
    for (auto id : list.array()) ids.push_back(static_cast<int32_t>(list.item(id, k++).count(INT32_MAX)));
  }
  encodings = std::move(out);
}

void apply(const JsonValue& json, size_t depth, bool special, Encodings& encodings) {
  check_depth(json, depth);
  const std::string_view type = json.at("type").string();
  if (type == "Sequence") {
    const JsonValue list = json.at("processors");
    size_t i = 0;
    for (auto element : list.array()) apply(list.item(element, i++), depth + 1, special, encodings);
  } else if (type == "TemplateProcessing") {
    apply_template(json, special, encodings);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    // The ids in these come with the file, and need not be the vocabulary's.
    const auto id_of = [&](std::string_view key) {
      const JsonValue value = json.at(key);
      const auto array = value.array();
      if (array.size() != 2) value.wrong("[token, id]");
      return static_cast<int32_t>(value.item(array.at(1).value(), 1).count(INT32_MAX));
    };
    const int32_t first = id_of("cls"), separator = id_of("sep");
    for (size_t i = 0; special && i < encodings.size(); ++i) {
      std::vector<int32_t>& ids = encodings[i];
      if (i == 0)
        ids.insert(ids.begin(), first);
      else if (type == "RobertaProcessing")
        ids.insert(ids.begin(), separator);
      ids.push_back(separator);
    }
  } else if (type != "ByteLevel") {
    unknown_type(json, "post-processor", type);
  }
  size_t count = 0;
  for (const auto& ids : encodings) count += ids.size();
  if (count > kMostTokens)
    json.fail(ErrorCode::corrupt_file, fmt::format("more than {} tokens around a text", kMostTokens));
}

std::vector<int32_t> frame(const JsonValue& json, bool special) {
  Encodings encodings = {{-1}};
  apply(json, 0, special, encodings);
  std::vector<int32_t> out;
  for (const auto& ids : encodings) out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

}  // namespace

Frames load_post_processor(const JsonValue& json) {
  return {frame(json, true), frame(json, false)};
}

}  // namespace kvasir::tokenizer
