// Where the hub, its cache and the token are: the environment variables that Python's huggingface_hub reads.
#pragma once

#include <filesystem>
#include <string>

namespace kvasir::hub {

struct HubSettings {
  std::string endpoint;  // without a trailing "/": HF_ENDPOINT, else the public hub
  std::filesystem::path
      cache;          // HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub
  std::string token;  // HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file HF_TOKEN_PATH or HF_HOME/token
  std::string token_source;  // the variable or file that the token came from, for messages
  std::string token_file;    // where a token file is looked for
  bool offline = false;      // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE
  double timeout = 10;       // seconds without a byte, and to connect: HF_HUB_DOWNLOAD_TIMEOUT
};

// Throws Error{invalid_input} naming the variable whose value cannot be used.
HubSettings settings_from_environment();

// Its `cache` and `offline` alone, for those who ask no hub: no token is read, nothing can be wrong.
std::filesystem::path cache_folder();
bool offline_in_environment();

}  // namespace kvasir::hub
