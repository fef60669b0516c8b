// Any bytes as a GGUF file: an error, or metadata and tensors that lie inside the file.
#include "formats/dequantize.h"
#include "formats/fuzz_file.h"
#include "formats/gguf.h"

namespace {

template <typename Call>
void allowed_to_fail(Call call) {
  try {
    call();
  } catch (const kvasir::Error& error) {
    if (error.code() == kvasir::ErrorCode::internal) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir::formats;
  static const FuzzFile file("kvasir_fuzz.gguf");
  file.write(data, size);
  allowed_to_fail([] {
    const GgufFile gguf = GgufFile::open(file.path());
    for (const GgufValue& value : gguf.metadata()) {
      if (gguf.find(value.key) == nullptr) __builtin_trap();
      allowed_to_fail([&] { (void)gguf.find_string(value.key); });
      allowed_to_fail([&] { (void)gguf.find_count(value.key); });
      allowed_to_fail([&] { (void)gguf.find_real(value.key); });
      allowed_to_fail([&] { (void)gguf.find_bool(value.key); });
      allowed_to_fail([&] {
        if (const auto strings = gguf.find_strings(value.key))
          for (const std::string_view text : *strings)
            if (!text.empty()) FuzzFile::touch(text.front(), text.back());
      });
      allowed_to_fail([&] { (void)gguf.find_integers(value.key); });
      allowed_to_fail([&] { (void)gguf.find_reals(value.key); });
      allowed_to_fail([&] { (void)gguf.find_bools(value.key); });
      allowed_to_fail([&] { (void)gguf.find_bytes(value.key); });
      allowed_to_fail([&] { (void)gguf.find_counts_per_layer(value.key, 3); });
    }
    for (const GgufTensor& tensor : gguf.tensors()) {
      if (gguf.find_tensor(tensor.name) == nullptr) __builtin_trap();
      const auto bytes = gguf.data(tensor);
      if (!bytes.empty()) FuzzFile::touch(bytes.front(), bytes.back());
      const kvasir::formats::WeightSource weight = gguf.weight(tensor);
      if (weight.rows > 0 && weight.cols > 0 && weight.cols <= 4096) {
        std::vector<float> row(static_cast<size_t>(weight.cols));
        allowed_to_fail([&] { dequantize_row(weight, weight.rows - 1, row); });
      }
    }
  });
  return 0;
}
