// Tokenizers out of tokenizer.json (Hugging Face `tokenizers`, version "1.0") and the files beside it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/json_components.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/parts.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_models.h"

namespace kvasir::tokenizer {
namespace {

using Parts = TokenizerBuilder::Parts;

constexpr size_t kLargestTokenizer = size_t{256} << 20;
constexpr size_t kLargestConfig = size_t{16} << 20;
constexpr size_t kMostTokens = 4'194'304;
constexpr size_t kLongestToken = 65'536;

// A score as the Rust library's JSON reader takes it: the decimal digits as an integer, multiplied or divided
// by a power of ten, which may be one unit in the last place off the nearest double. Ties between ways to cut
// a text depend on it.
double score_of(double nearest) {
  if (nearest == 0 || !std::isfinite(nearest)) return nearest;
  std::array<char, 32> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), nearest, std::chars_format::scientific);
  KVASIR_CHECK(error == std::errc());
  uint64_t digits = 0;
  int exponent = 0, after_point = 0;
  bool point = false;
  const char* c = text.data() + (text[0] == '-');
  for (; c != end && *c != 'e'; ++c) {
    if (*c == '.') {
      point = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*c - '0');
    after_point += point;
  }
  std::from_chars(c + (c[1] == '+' ? 2 : 1), end, exponent);
  exponent -= after_point;
  // Exact powers; beyond them (no real vocabulary goes there) the nearest double is as good.
  if (exponent < -308 || exponent > 308) return nearest;
  const double power = std::pow(10.0, std::abs(exponent));
  const double value =
      exponent >= 0 ? static_cast<double>(digits) * power : static_cast<double>(digits) / power;
  return nearest < 0 ? -value : value;
}

// normalize, find tokens of normalized text, cut, encode.
class PipelineEncoder final : public TextEncoder {
 public:
  std::unique_ptr<Normalizer> normalizer;
  AddedTokenMatcher normalized_tokens;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;

  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override {
    std::string normalized;
    bool first = place.first;
    if (normalizer) {
      // Where the very first character vanishes, nothing stands at the start of the text any more.
      normalized = text;
      if (!normalizer->apply_keeping_start(normalized)) first = false;
      text = normalized;
    }
    if (text.size() > std::numeric_limits<int32_t>::max()) {
      throw_error(ErrorCode::invalid_input, "a text that normalizes to {} bytes is too long to encode",
                  text.size());
    }
    std::vector<Fragment> fragments;
    normalized_tokens.split(text, place.parse_special, fragments);
    for (const Fragment& f : fragments) {
      if (f.id >= 0) {
        ids.push_back(f.id);
      } else {
        encode_fragment(text.substr(f.begin, f.end - f.begin), first && f.begin == 0, workspace, ids);
      }
    }
  }

  size_t memory_bytes() const override { return model->memory_bytes(); }

 private:
  void encode_fragment(std::string_view text, bool first, Workspace& workspace,
                       std::vector<int32_t>& ids) const {
    if (!pre_tokenizer) {
      model->encode(text, workspace, ids);
      return;
    }
    Pieces& pieces = workspace.pieces;
    pieces.reset(text, first);
    pre_tokenizer->apply(pieces);
    uint32_t begin = 0;
    for (uint32_t end : pieces.ends) {
      if (end > begin)
        model->encode(std::string_view(pieces.text).substr(begin, end - begin), workspace, ids);
      begin = end;
    }
  }
};

class Loader {
 public:
  explicit Loader(const TokenizerFiles& files)
      : files_(files),
        document_(files.tokenizer_json, files.name, kLargestTokenizer),
        parts_(std::make_unique<Parts>()) {}

  std::unique_ptr<Parts> load() {
    const JsonValue root = document_.root();
    if (const auto version = root.find("version")) {
      if (version->string() != "1.0") {
        version->fail(ErrorCode::unsupported,
                      fmt::format("Unknown tokenizer version '{}'", printable(version->string())));
      }
    }
    auto encoder = std::make_unique<PipelineEncoder>();
    if (const auto json = root.find("normalizer")) encoder->normalizer = load_normalizer(*json);
    bool byte_level = false;
    const auto pre = root.find("pre_tokenizer");
    const JsonValue model = root.at("model");
    const std::string kind = kind_of(model);
    if (pre) byte_level = ends_in_byte_level(*pre) && kind == "BPE" && plain_symbols(model);
    if (pre) encoder->pre_tokenizer = load_pre_tokenizer(*pre, byte_level);
    encoder->model = load_model(model, kind, byte_level);
    load_added_tokens(root, *encoder);
    if (const auto json = root.find("post_processor")) {
      Frames frames = load_post_processor(*json);
      parts_->frame = std::move(frames.with_special);
      parts_->plain_frame = std::move(frames.plain);
    }
    if (const auto json = root.find("decoder")) {
      parts_->decoder = load_decoder(*json);
    } else {
      parts_->decoder = std::make_unique<JoiningDecoder>();
    }
    parts_->encoder = std::move(encoder);
    load_roles();
    return std::move(parts_);
  }

 private:
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    parts_->warnings.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Files of before the "type" member existed tell by what else they have.
  static std::string kind_of(const JsonValue& model) {
    if (const auto type = model.find("type")) return std::string(type->string());
    if (model.find("merges")) return "BPE";
    if (const auto vocabulary = model.find("vocab"); vocabulary && vocabulary->is_array()) return "Unigram";
    if (model.find("continuing_subword_prefix") || model.find("max_input_chars_per_word")) return "WordPiece";
    return "WordLevel";
  }

  static bool plain_symbols(const JsonValue& model) {
    return model.string_or("continuing_subword_prefix", "").empty() &&
           model.string_or("end_of_word_suffix", "").empty();
  }

  std::unique_ptr<Model> load_model(const JsonValue& model, const std::string& kind, bool byte_level) {
    if (kind == "BPE") return load_bpe(model, byte_level);
    if (kind == "Unigram") return load_unigram(model);
    if (kind == "WordPiece") {
      load_vocabulary(model.at("vocab"));
      WordPieceModel::Options options;
      options.unknown_token = model.string_or("unk_token", options.unknown_token);
      options.prefix = model.string_or("continuing_subword_prefix", options.prefix);
      if (const auto n = model.find("max_input_chars_per_word"))
        options.most_characters = n->count(UINT32_MAX);
      set_unknown(options.unknown_token);
      return std::make_unique<WordPieceModel>(parts_->vocabulary, options);
    }
    if (kind == "WordLevel") {
      load_vocabulary(model.at("vocab"));
      const std::string unknown = model.string_or("unk_token", "<unk>");
      set_unknown(unknown);
      return std::make_unique<WordLevelModel>(parts_->vocabulary, unknown);
    }
    model.fail(
        ErrorCode::unsupported,
        fmt::format("model type {} is unknown: BPE, Unigram, WordPiece and WordLevel are", printable(kind)));
  }

  void set_unknown(const std::string& token) {
    const int32_t id = parts_->vocabulary.find(token);
    if (id >= 0) parts_->unknown = id;
  }

  void check_text(const JsonValue& where, std::string_view text) {
    if (text.size() > kLongestToken) {
      where.fail(ErrorCode::corrupt_file,
                 fmt::format("a token of {} bytes, the limit is {}", text.size(), kLongestToken));
    }
  }

  // {text: id}
  void load_vocabulary(const JsonValue& json) {
    const auto object = json.object();
    // The count is from the parsed text itself, so it is bounded by the file's size.
    size_t count = 0, bytes = 0;
    for (const auto& [text, id] : object) {
      ++count;
      bytes += text.size();
    }
    if (count > kMostTokens)
      json.fail(ErrorCode::corrupt_file, fmt::format("{} tokens, the limit is {}", count, kMostTokens));
    // Ids may have gaps, but tables by id must not outgrow the file.
    const uint64_t id_limit = std::min<uint64_t>(kMostTokens, 4 * count + (1 << 20));
    parts_->vocabulary.reserve(count, bytes);
    for (const auto& [text, value] : object) {
      uint64_t id;
      if (value.get(id) || id >= id_limit) {
        json.member(value, text).wrong(fmt::format("a token id below {}", id_limit));
      }
      check_text(json, text);
      if (parts_->vocabulary.add(text, static_cast<int32_t>(id)) != Vocabulary::kNone) {
        json.fail(ErrorCode::corrupt_file, fmt::format("token {} appears twice", printable(text)));
      }
    }
  }

  std::unique_ptr<Model> load_bpe(const JsonValue& model, bool byte_level) {
    if (const auto dropout = model.find("dropout")) {
      const double p = dropout->number();
      if (!(p >= 0 && p <= 1)) dropout->wrong("a probability from 0 to 1");
      if (p > 0) dropout->fail(ErrorCode::unsupported, "dropout makes encodings random: only 0 is supported");
    }
    load_vocabulary(model.at("vocab"));
    std::vector<BpeModel::MergeText> merges;
    const JsonValue list = model.at("merges");
    const auto array = list.array();
    merges.reserve(array.size());
    size_t i = 0;
    for (auto element : array) {
      BpeModel::MergeText merge;
      std::string_view text;
      simdjson::dom::array pair;
      if (!element.get(text)) {
        if (text.starts_with("#version")) continue;
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) {
          list.item(element, i)
              .fail(ErrorCode::corrupt_file,
                    fmt::format("merge {} is no two texts with one space between", printable(text)));
        }
        merge = {text.substr(0, space), text.substr(space + 1)};
      } else if (element.get(pair) || pair.size() != 2 || pair.at(0).get(merge.left) ||
                 pair.at(1).get(merge.right)) {
        list.item(element, i).wrong("\"left right\" or [\"left\", \"right\"]");
      }
      merges.push_back(merge);
      ++i;
    }
    BpeOptions options;
    options.byte_level = byte_level;
    options.ignore_merges = model.boolean_or("ignore_merges", false);
    options.continuing_subword_prefix = model.string_or("continuing_subword_prefix", "");
    options.end_of_word_suffix = model.string_or("end_of_word_suffix", "");
    if (const auto unknown = model.find("unk_token")) options.unknown_token = unknown->string();
    options.fuse_unknown = model.boolean_or("fuse_unk", false);
    options.byte_fallback = model.boolean_or("byte_fallback", false);
    if (options.unknown_token) set_unknown(*options.unknown_token);
    return std::make_unique<BpeModel>(parts_->vocabulary, merges, options);
  }

  std::unique_ptr<Model> load_unigram(const JsonValue& model) {
    const JsonValue list = model.at("vocab");
    const auto array = list.array();
    std::vector<UnigramModel::Token> tokens;
    tokens.reserve(array.size());
    double lowest = std::numeric_limits<double>::infinity();
    size_t i = 0;
    for (auto element : array) {
      UnigramModel::Token token{};
      simdjson::dom::array pair;
      if (element.get(pair) || pair.size() != 2 || pair.at(0).get(token.text) ||
          pair.at(1).get(token.score)) {
        list.item(element, i).wrong("[\"piece\", score]");
      }
      check_text(list, token.text);
      token.id = static_cast<int32_t>(i);
      token.score = score_of(token.score);
      lowest = std::min(lowest, token.score);
      tokens.push_back(token);
      if (++i > kMostTokens)
        list.fail(ErrorCode::corrupt_file, fmt::format("more than {} tokens", kMostTokens));
    }
    for (const UnigramModel::Token& t : tokens) {
      // An empty piece has an id but matches nothing; it gets no entry.
      if (!t.text.empty()) parts_->vocabulary.add_or_replace(t.text, t.id);
    }
    unigram_size_ = static_cast<int32_t>(tokens.size());
    UnigramModel::Options options;
    if (const auto unknown = model.find("unk_id")) {
      if (tokens.empty()) unknown->fail(ErrorCode::corrupt_file, "there are no tokens");
      options.unknown = static_cast<int32_t>(unknown->count(tokens.size() - 1));
      parts_->unknown = options.unknown;
    }
    options.unknown_score = lowest - 10;
    options.byte_fallback = model.boolean_or("byte_fallback", false);
    return std::make_unique<UnigramModel>(parts_->vocabulary, tokens, options);
  }

  struct NewToken {
    AddedToken token;
    std::optional<uint64_t> file_id;
  };

  static AddedToken read_token(const JsonValue& json) {
    AddedToken token;
    token.content = json.at("content").string();
    token.single_word = json.boolean_or("single_word", false);
    token.lstrip = json.boolean_or("lstrip", false);
    token.rstrip = json.boolean_or("rstrip", false);
    token.special = json.boolean_or("special", false);
    token.normalized = json.boolean_or("normalized", !token.special);
    return token;
  }

  // Enters a token: the model's id where the model has the text, else the next free one (the id in the file
  // is only compared; Rust library, added_vocabulary.rs).
  void add_token(AddedToken token, std::optional<uint64_t> file_id, std::vector<AddedToken>& all) {
    if (token.content.empty()) return;
    const auto known = by_content_.find(token.content);
    if (known != by_content_.end()) {
      token.id = all[known->second].id;
      all[known->second] = std::move(token);
      return;
    }
    const int32_t in_model = parts_->vocabulary.find(token.content);
    if (in_model >= 0) {
      token.id = in_model;
    } else {
      const auto size =
          static_cast<int32_t>(unigram_size_ >= 0 ? unigram_size_ : parts_->vocabulary.entries());
      token.id = largest_added_ >= size || (largest_added_ >= 0 && size == 0) ? largest_added_ + 1 : size;
    }
    largest_added_ = std::max(largest_added_, token.id);
    if (file_id && *file_id != static_cast<uint64_t>(token.id)) {
      warn("{}: added token {} has id {} in the file, {} in the vocabulary", files_.name,
           printable(token.content), *file_id, token.id);
    }
    by_content_.emplace(token.content, all.size());
    all.push_back(std::move(token));
  }

  void load_added_tokens(const JsonValue& root, PipelineEncoder& encoder) {
    std::vector<AddedToken> all;
    if (const auto list = root.find("added_tokens")) {
      size_t i = 0;
      for (auto element : list->array()) {
        const JsonValue json = list->item(element, i++);
        const AddedToken token = read_token(json);
        check_text(json, token.content);
        add_token(token, json.at("id").count(UINT32_MAX), all);
        if (all.size() > kMostTokens) list->fail(ErrorCode::corrupt_file, "too many added tokens");
      }
    }
    add_config_tokens(all);

    Parts& p = *parts_;
    p.size = std::max(p.vocabulary.size(), unigram_size_);
    for (const AddedToken& t : all) p.size = std::max(p.size, t.id + 1);
    if (static_cast<size_t>(p.size) > 3 * kMostTokens) {
      throw_error(ErrorCode::corrupt_file, "{}: token ids up to {}, the limit is {}", files_.name, p.size,
                  3 * kMostTokens);
    }
    p.special.assign(static_cast<size_t>(p.size), false);
    p.hidden.assign(static_cast<size_t>(p.size), false);
    std::vector<AddedToken> raw, normalized;
    std::set<std::string> special_texts;
    for (const AddedToken& t : all) {
      if (t.special) special_texts.insert(t.content);
    }
    for (AddedToken& t : all) {
      p.added.add(t.content, t.id);
      if (t.normalized) {
        // The package decodes such a token to its normalized text, and asks whether that text is special.
        const std::string content = t.content;
        if (encoder.normalizer) encoder.normalizer->apply(t.content);
        // The package would find it everywhere, cut ASCII text at each character and fail on any other.
        if (t.content.empty()) {
          throw_error(ErrorCode::unsupported,
                      "{}: added token {} normalizes to nothing, so that no text can have it; give it "
                      "\"normalized\": false",
                      files_.name, printable(content));
        }
        if (t.content != content) p.respelled[t.id] = t.content;
      }
      if (special_texts.contains(t.content)) p.special[static_cast<size_t>(t.id)] = true;
      (t.normalized ? normalized : raw).push_back(t);
    }
    p.matcher = AddedTokenMatcher(std::move(raw), AddedTokenMatcher::Rule::leftmost_longest);
    encoder.normalized_tokens =
        AddedTokenMatcher(std::move(normalized), AddedTokenMatcher::Rule::leftmost_longest);
  }

  // tokenizer_config.json may name tokens that tokenizer.json lacks; added_tokens.json is its older form.
  void add_config_tokens(std::vector<AddedToken>& all) {
    std::map<uint64_t, AddedToken> extra;
    if (!files_.tokenizer_config_json.empty()) {
      const JsonDocument document(files_.tokenizer_config_json, "tokenizer_config.json", kLargestConfig);
      const JsonValue root = document.root();
      if (const auto tokens = root.find("added_tokens_decoder")) {
        for (const auto& [key, value] : tokens->object()) {
          uint64_t id = 0;
          const JsonValue json = tokens->member(value, key);
          if (key.empty() || key.size() > 9 ||
              !std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; })) {
            json.fail(ErrorCode::corrupt_file, "its key is no token id");
          }
          for (char c : key) id = id * 10 + static_cast<uint64_t>(c - '0');
          extra[id] = read_token(json);
        }
      }
      read_roles(root);
    }
    if (!files_.special_tokens_map_json.empty()) {
      const JsonDocument document(files_.special_tokens_map_json, "special_tokens_map.json", kLargestConfig);
      read_roles(document.root());
    }
    if (extra.empty() && !files_.added_tokens_json.empty()) {
      const JsonDocument document(files_.added_tokens_json, "added_tokens.json", kLargestConfig);
      const JsonValue root = document.root();
      for (const auto& [text, value] : root.object()) {
        AddedToken token;
        token.content = text;
        extra[root.member(value, text).count(UINT32_MAX)] = std::move(token);
      }
    }
    for (auto& [id, token] : extra) {
      if (!by_content_.contains(token.content)) add_token(std::move(token), id, all);
    }
  }

  // bos_token and its like: a text, or {content: text}. What the first file says stays.
  void read_roles(const JsonValue& root) {
    for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      const auto value = root.find(role);
      if (!value || roles_.contains(role)) continue;
      if (value->is_string()) {
        roles_[role] = value->string();
      } else if (value->is_object()) {
        roles_[role] = value->at("content").string();
      } else {
        value->wrong("a text or an object with \"content\"");
      }
    }
  }

  void load_roles() {
    Parts& p = *parts_;
    const auto id_of = [&](std::string_view text) {
      const int32_t id = p.added.find(text);
      return id >= 0 ? id : p.vocabulary.find(text);
    };
    const auto role = [&](const char* name, std::optional<int32_t>& out) {
      const auto found = roles_.find(name);
      if (found == roles_.end()) return;
      const int32_t id = id_of(found->second);
      if (id >= 0) {
        out = id;
      } else {
        warn("{}: {} {} is no token", files_.name, name, printable(found->second));
      }
    };
    role("bos_token", p.bos);
    role("eos_token", p.eos);
    role("pad_token", p.pad);
    role("unk_token", p.unknown);

    std::set<int32_t> ends;
    if (p.eos) ends.insert(*p.eos);
    if (!read_end_ids(files_.generation_config_json, "generation_config.json", ends)) {
      read_end_ids(files_.config_json, "config.json", ends);
    }
    if (ends.empty()) {
      for (std::string_view text : end_texts()) {
        if (id_of(text) >= 0) ends.insert(id_of(text));
      }
    }
    p.eog.assign(ends.begin(), ends.end());
    if (!p.eos && !p.eog.empty()) p.eos = p.eog.front();

    for (int32_t id : p.frame) {
      if (id >= p.size) {
        throw_error(ErrorCode::corrupt_file, "{}: post_processor: token id {} does not exist ({} ids)",
                    files_.name, id, p.size);
      }
    }
  }

  // eos_token_id: an id or a list of ids. False where the file says nothing (0, null or an empty list say
  // nothing).
  bool read_end_ids(std::string_view text, const std::string& name, std::set<int32_t>& ends) {
    if (text.empty()) return false;
    try {
      const JsonDocument document(text, name, kLargestConfig);
      const auto value = document.root().find("eos_token_id");
      if (!value) return false;
      std::vector<int32_t> ids;  // taken when all of them are ids
      const auto read = [&](const JsonValue& id) {
        ids.push_back(static_cast<int32_t>(id.count(INT32_MAX)));
      };
      if (value->is_array()) {
        size_t i = 0;
        for (auto element : value->array()) read(value->item(element, i++));
      } else {
        read(*value);
      }
      for (const int32_t id : ids) {
        if (id < parts_->size) {
          ends.insert(id);
        } else {
          warn("{}: eos_token_id {} is no token of {}", name, id, parts_->size);
        }
      }
      return !ids.empty();
    } catch (const Error& e) {
      warn("{}; ignored", e.what());
      return false;
    }
  }

  const TokenizerFiles& files_;
  JsonDocument document_;
  std::unique_ptr<Parts> parts_;
  std::map<std::string, size_t, std::less<>> by_content_;  // to an index of added tokens
  std::map<std::string, std::string, std::less<>> roles_;
  int32_t largest_added_ = -1;
  int32_t unigram_size_ = -1;
};

}  // namespace

std::unique_ptr<Parts> TokenizerBuilder::load_json(const TokenizerFiles& files) {
  return Loader(files).load();
}

Tokenizer Tokenizer::from_files(const TokenizerFiles& files) {
  return TokenizerBuilder::finish(TokenizerBuilder::load_json(files));
}

}  // namespace kvasir::tokenizer
