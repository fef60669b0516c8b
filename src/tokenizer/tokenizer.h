// Text to token ids and back.
//
// A Tokenizer is made once, from a tokenizer.json or from a GGUF file's metadata, and never changes; any
// number of threads may use it. What it does follows the tokenizer that the checkpoint was trained with, id
// for id (docs/tokenizers.md lists the few known differences).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/decoder.h"

namespace kvasir::tokenizer {

struct EncodeOptions {
  // Put the vocabulary's own specials around the text (BOS, EOS, CLS, SEP ..., where it has any). Text that a
  // chat template rendered is encoded without.
  bool add_special = true;
  // Special tokens written out in the text are recognised. Off for text from strangers.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special = true;
};

struct GgufTokenizerData;

// The texts of the files in a model folder that say something about its tokenizer; empty where a file is
// absent.
struct TokenizerFiles {
  std::string_view tokenizer_json;
  std::string_view tokenizer_config_json, special_tokens_map_json, added_tokens_json;
  std::string_view generation_config_json, config_json;  // for the ids that end a generation
  std::string name = "tokenizer.json";                   // for messages
};

class Tokenizer {
 public:
  // Throw Error{corrupt_file} or Error{unsupported} naming the member and what is wrong with it.
  static Tokenizer from_gguf(const GgufTokenizerData& data);
  static Tokenizer from_files(const TokenizerFiles& files);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes; what is no UTF-8 counts as U+FFFD (sentencepiece vocabularies of GGUF files take it byte by
  // byte). At most 2^31 - 1 bytes. O(n log n) at worst, whatever the text.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Always valid UTF-8. Ids that do not exist are skipped.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // As the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"). Empty for an id that does not exist.
  std::string_view piece(int32_t id) const;
  // What one token stands for, as raw bytes (they need not be whole characters).
  std::string piece_bytes(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token_text) const;

  // Ids are in [0, vocab_size()); some may not exist.
  int32_t vocab_size() const;
  bool exists(int32_t id) const;
  // Throws Error{invalid_input} naming `what` and the first of `ids` that does not exist.
  void check_ids(std::span<const int32_t> ids, std::string_view what) const;
  // Throws Error{corrupt_file} naming `what` and a token of the vocabulary (added ones apart) whose id is
  // beyond what a model of `width` logits has.
  void check_width(int64_t width, std::string_view what) const;
  bool is_special(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unknown_id() const;
  // Tokens that end a generation, ascending; eos_id() is one of them. A chat's own stop tokens may be added
  // by the caller.
  std::span<const int32_t> eog_ids() const;
  bool is_eog(int32_t id) const;

  // Whether encode(add_special) would put BOS in front.
  bool adds_bos() const;

  // What loading found odd but could live with; one line each.
  std::span<const std::string> warnings() const;

  size_t memory_bytes() const;

 private:
  friend class StreamDecoder;
  friend struct TokenizerBuilder;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);

  bool decode_token(int32_t id, const DecodeOptions& options, DecodeToken& token) const;
  const Decoder& decoder() const;

  std::unique_ptr<Parts> parts_;
};

// Text of a growing list of tokens, as it becomes certain: what push() returns is whole characters, and all
// of it together with finish() is decode() of all the tokens (where raw bytes of a byte-fallback vocabulary
// are ill-formed, characters already handed out stay). The tokenizer must outlive the stream.
class StreamDecoder {
 public:
  // `context`: the tokens before the first one to be pushed, of which the last few are enough. Without any,
  // the first pushed token begins the text, and a vocabulary that hides the first space hides it there.
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {},
                         std::span<const int32_t> context = {});

  // The text that `id` completes; often empty. Valid until the next call.
  std::string_view push(int32_t id);
  // What was held back, incomplete characters as U+FFFD. The stream is then as new, but for its place in the
  // text.
  std::string_view finish();

 private:
  void take(const DecodeToken& token);
  void flush_bytes(bool more);
  void flush_run(bool more);
  void append(std::string_view text);
  void take_generic(int32_t id);

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  StreamRule rule_;
  size_t spaces_to_strip_;
  bool first_ = true;
  bool poisoned_ = false;  // inside a run of raw bytes that turned out ill-formed
  std::string pending_;    // bytes that do not make a character yet
  std::string out_, piece_;
  // generic: ids of the window; text up to `read_` of it has been handed out.
  std::vector<int32_t> window_;
  size_t prefix_ = 0, read_ = 0;
};

}  // namespace kvasir::tokenizer
