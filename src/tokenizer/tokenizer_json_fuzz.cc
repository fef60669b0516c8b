// Any bytes as a tokenizer.json: it is refused with an Error, or it encodes and decodes without harm.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  using namespace kvasir::tokenizer;
  TokenizerFiles files;
  files.tokenizer_json = {reinterpret_cast<const char*>(data), size};
  files.tokenizer_config_json = R"({"bos_token": "a", "eos_token": {"content": "b"}})";
  try {
    const Tokenizer t = Tokenizer::from_files(files);
    for (std::string_view text : {"", "a", "the  quick\n brown 123 fox's É中😀",
                                  "<s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\xFF\xC0\xE2\x82"}) {
      const std::vector<int32_t> ids = t.encode(text);
      for (int32_t id : ids) {
        if (id < 0 || id >= t.vocab_size()) __builtin_trap();
      }
      if (!is_valid_utf8(t.decode(ids))) __builtin_trap();
      StreamDecoder stream(t);
      for (int32_t id : ids) {
        if (!is_valid_utf8(stream.push(id))) __builtin_trap();
      }
      if (!is_valid_utf8(stream.finish())) __builtin_trap();
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
