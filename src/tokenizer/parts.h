// The insides of a Tokenizer, for those who build one.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/model.h"
#include "tokenizer/spm.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace kvasir::tokenizer {

// Encodes a stretch of text that contains none of the matcher's tokens.
class TextEncoder {
 public:
  struct Place {
    bool first;          // at the very start of the text
    bool after_special;  // right after a special token
    bool parse_special;
  };
  virtual ~TextEncoder() = default;
  virtual void encode(std::string_view text, const Place& place, Workspace& workspace,
                      std::vector<int32_t>& ids) const = 0;
  virtual size_t memory_bytes() const = 0;
};

struct Tokenizer::Parts {
  Vocabulary vocabulary;         // of the model
  Vocabulary added;              // added tokens, by text; looked at before the model's
  std::vector<TokenKind> kinds;  // by id; empty where the source has none (tokenizer.json)
  std::vector<float> scores;     // by id, GGUF's
  // Added tokens that decode to another text than they are looked for by (tokenizer.json: their normalized
  // text).
  std::map<int32_t, std::string> respelled;
  std::vector<bool> special;  // by id: hidden by skip_special
  std::vector<bool> hidden;   // by id: decodes to nothing, always
  int32_t size = 0;

  bool repair_text = true;  // invalid UTF-8 becomes U+FFFD before anything else
  AddedTokenMatcher matcher;
  std::unique_ptr<TextEncoder> encoder;
  std::unique_ptr<Decoder> decoder;

  // Ids around the text, with add_special and without; id -1 stands for the text.
  std::vector<int32_t> frame{-1}, plain_frame{-1};
  bool one_bos = false;                   // a text that begins with BOS itself gets no second one
  bool prefix_space = false;              // a text that begins with no special token gets a space in front
  bool drop_space_after_special = false;  // GGUF of Phi-3: white space after a special token vanishes ...
  std::vector<int32_t> keep_space_after;  // ... but after these

  std::optional<int32_t> bos, eos, pad, unknown;
  std::vector<int32_t> eog;
  std::vector<std::string> warnings;

  // Scratch memory, one per encode() in flight.
  std::unique_ptr<Workspace> borrow();
  void give_back(std::unique_ptr<Workspace> workspace);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

// Texts of tokens that end a turn or a text, in whatever vocabulary they appear.
std::span<const std::string_view> end_texts();

struct TokenizerBuilder {
  using Parts = Tokenizer::Parts;
  static std::unique_ptr<Parts> load_json(const TokenizerFiles& files);
  static Tokenizer finish(std::unique_ptr<Parts> parts) { return Tokenizer(std::move(parts)); }
};

}  // namespace kvasir::tokenizer
