// llama.cpp's logits for given token ids, for accuracy tables: built by build.py against llama.cpp's public
// header.
//
//   llama-logits MODEL.gguf TOKENS.json OUT.npy [--kv-k TYPE] [--kv-v TYPE] [--chunk N] [--threads N]
//
// TOKENS.json is a list of ids; OUT.npy is float32 [tokens, vocabulary], written as it is computed. TYPE is
// one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 (default f16, as in llama.cpp's own tools).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void fail(const std::string& message) {
  std::cerr << "llama-logits: " << message << "\n";
  std::exit(1);
}

std::vector<llama_token> read_tokens(const char* path) {
  std::ifstream in(path);
  if (!in) fail(std::string("cannot open ") + path);
  std::vector<llama_token> tokens;
  char c = 0;
  while (in.get(c)) {
    if (c < '0' || c > '9') continue;
    in.unget();
    llama_token token = 0;
    in >> token;
    tokens.push_back(token);
  }
  return tokens;
}

// The .npy header, version 1.0, padded so that the data begins at a multiple of 64 bytes.
void write_npy_header(std::ofstream& out, std::size_t rows, std::size_t columns) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                     std::to_string(columns) + "), }";
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  out.write("\x93NUMPY\x01\x00", 8);
  const std::uint16_t size = static_cast<std::uint16_t>(text.size());
  out.put(static_cast<char>(size & 0xff)).put(static_cast<char>(size >> 8));
  out << text;
}

ggml_type cache_type(const std::string& name) {
  static const std::map<std::string, ggml_type> kTypes = {
      {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
      {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0}, {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0}};
  const auto found = kTypes.find(name);
  if (found == kTypes.end()) fail("unknown cache type " + name);
  return found->second;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc % 2 != 0) {
    fail(
        "usage: llama-logits MODEL.gguf TOKENS.json OUT.npy [--kv-k T] [--kv-v T] [--chunk N] [--threads N]");
  }
  std::string kv_k = "f16", kv_v = "f16";
  int chunk = 512, threads = 2;
  for (int i = 4; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--kv-k") {
      kv_k = argv[i + 1];
    } else if (flag == "--kv-v") {
      kv_v = argv[i + 1];
    } else if (flag == "--chunk") {
      chunk = std::atoi(argv[i + 1]);
    } else if (flag == "--threads") {
      threads = std::atoi(argv[i + 1]);
    } else {
      fail("unknown flag " + flag);
    }
  }
  std::vector<llama_token> tokens = read_tokens(argv[2]);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) fail(std::string("cannot load ") + argv[1]);
  llama_context_params settings = llama_context_default_params();
  settings.n_ctx = static_cast<std::uint32_t>(tokens.size());
  settings.n_batch = static_cast<std::uint32_t>(chunk);
  settings.n_ubatch = static_cast<std::uint32_t>(chunk);
  settings.n_threads = threads;
  settings.n_threads_batch = threads;
  settings.type_k = cache_type(kv_k);
  settings.type_v = cache_type(kv_v);
  settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // quantized V needs it; one path for every type
  llama_context* context = llama_init_from_model(model, settings);
  if (context == nullptr) fail("cannot create a context");
  const std::size_t vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));

  std::ofstream out(argv[3], std::ios::binary);
  write_npy_header(out, tokens.size(), vocabulary);
  llama_batch batch = llama_batch_init(chunk, 0, 1);
  for (std::size_t start = 0; start < tokens.size(); start += static_cast<std::size_t>(chunk)) {
    batch.n_tokens = 0;
    for (std::size_t i = start; i < tokens.size() && batch.n_tokens < chunk; ++i, ++batch.n_tokens) {
      const int n = batch.n_tokens;
      batch.token[n] = tokens[i];
      batch.pos[n] = static_cast<llama_pos>(i);
      batch.n_seq_id[n] = 1;
      batch.seq_id[n][0] = 0;
      batch.logits[n] = 1;
    }
    if (llama_decode(context, batch) != 0) fail("decode failed at token " + std::to_string(start));
    out.write(
        reinterpret_cast<const char*>(llama_get_logits(context)),
        static_cast<std::streamsize>(static_cast<std::size_t>(batch.n_tokens) * vocabulary * sizeof(float)));
  }
  out.close();
  if (!out) fail(std::string("cannot write ") + argv[3]);
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  llama_backend_free();
  return 0;
}
