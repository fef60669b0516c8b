// Any bytes through tokenizers of each kind, and each scanner against the regex that it stands for.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/scanner.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

using namespace kvasir;
using namespace kvasir::tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

// All 256 letters and a few merges.
Tokenizer byte_level(std::string_view pre) {
  std::vector<std::string> texts;
  for (unsigned b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    texts.push_back(in_alphabet({&c, 1}));
  }
  for (const char* merged : {"aa", "aaaa", "th", "the", "Ġt", "Ġthe", "ĊĊ", "ĠĠ", "<|end|>"})
    texts.emplace_back(merged);
  GgufTokenizerData d;
  d.model = "gpt2";
  d.pre = pre;
  d.tokens.assign(texts.begin(), texts.end());
  d.token_types.assign(texts.size(), 1);
  d.token_types.back() = 3;
  d.merges = {"a a", "aa aa", "t h", "th e", "Ġ t", "Ġt he", "Ġ the", "Ċ Ċ", "Ġ Ġ"};
  d.bos = d.eos = 0;
  return Tokenizer::from_gguf(d);
}

Tokenizer sentencepiece(std::string_view model) {
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>", "▁",  "a", "b",  "c",
                                    "▁a",    "ab",  "abc",  "▁▁", "é", "中", "▁the"};
  for (unsigned b = 0; b < 256; ++b) texts.push_back(fmt::format("<0x{:02X}>", b));
  GgufTokenizerData d;
  d.model = model;
  d.tokens.assign(texts.begin(), texts.end());
  for (size_t i = 0; i < texts.size(); ++i) {
    d.scores.push_back(-static_cast<float>(i));
    d.token_types.push_back(i == 0 ? 2 : i < 3 ? 3 : i == 10 ? 4 : i < 14 ? 1 : 6);
  }
  d.unknown = 0;
  d.bos = 1;
  d.eos = 2;
  d.add_space_prefix = true;
  return Tokenizer::from_gguf(d);
}

std::vector<uint32_t> regex_ends(const Regex& regex, std::string_view text) {
  std::vector<Regex::Match> matches;
  regex.find_all(text, matches);
  std::vector<uint32_t> ends;
  size_t done = 0;
  for (const Regex::Match& m : matches) {
    if (m.begin > done) ends.push_back(static_cast<uint32_t>(m.begin));
    if (m.end > m.begin) ends.push_back(static_cast<uint32_t>(m.end));
    done = m.end;
  }
  if (done < text.size()) ends.push_back(static_cast<uint32_t>(text.size()));
  return ends;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Tokenizer>* const tokenizers = [] {
    auto* all = new std::vector<Tokenizer>();
    for (const char* pre :
         {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-v3", "deepseek-llm", "smollm", "default"}) {
      all->push_back(byte_level(pre));
    }
    all->push_back(sentencepiece("llama"));
    all->push_back(sentencepiece("t5"));
    return all;
  }();
  static const std::vector<std::pair<Scan, Regex>>* const regexes = [] {
    auto* all = new std::vector<std::pair<Scan, Regex>>();
    for (Scan s : all_scanners()) all->emplace_back(s, Regex(pattern_of(s), "fuzz"));
    return all;
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& t : *tokenizers) {
    const std::vector<int32_t> ids = t.encode(text);
    require(ids == t.encode(text));  // whatever the cache holds now
    for (int32_t id : ids) require(id >= 0 && id < t.vocab_size());
    const std::string whole = t.decode(ids, {.skip_special = false});
    require(is_valid_utf8(whole));
    StreamDecoder stream(t, {.skip_special = false});
    std::string out;
    for (int32_t id : ids) out += stream.push(id);
    out += stream.finish();
    require(out == whole);
  }
  const std::string repaired = replace_invalid(text);
  require((*tokenizers)[0].decode((*tokenizers)[0].encode(repaired, {.parse_special = false})) == repaired);
  for (const auto& [scan_kind, regex] : *regexes) {
    std::vector<uint32_t> ends;
    scan(scan_kind, repaired, 0, ends);
    try {
      require(ends == regex_ends(regex, repaired));
    } catch (const Error& e) {
      require(e.code() ==
              ErrorCode::invalid_input);  // the step budget of the regex engine, which scanners do not have
    }
  }
  return 0;
}
