// Any bytes as a safetensors file: an error, or tensors that lie inside the file.
#include "formats/fuzz_file.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir::formats;
  static const FuzzFile file("kvasir_fuzz.safetensors");
  file.write(data, size);
  for (const bool lenient : {false, true}) {
    try {
      const std::filesystem::path paths[] = {file.path()};
      const SafetensorsModel model = SafetensorsModel::open_files(paths, {.lenient = lenient});
      for (const SafetensorsTensor& tensor : model.tensors()) {
        const auto bytes = model.data(tensor);
        if (!bytes.empty()) FuzzFile::touch(bytes.front(), bytes.back());
        if (model.find(tensor.name) == nullptr) __builtin_trap();
        if (info(tensor.dtype).format) (void)model.weight(tensor);
      }
    } catch (const kvasir::Error& error) {
      if (error.code() == kvasir::ErrorCode::internal) __builtin_trap();
    }
  }
  return 0;
}
