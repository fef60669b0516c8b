// What `kvasir get` is made of: starter models from packages, everything else from a Hugging Face hub.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/starter_models.h"
#include "hub/reference.h"

namespace kvasir::cli {

struct GetFlags {
  std::string model;
  bool if_missing = false;
  bool list = false;
  bool json = false;
  bool offline = false;
  bool dry_run = false;
  // Hub only.
  std::string revision;
  std::string quant;
  bool force = false;  // also what this build cannot run or hold
  int connections = 8;
  int retries = 5;
  int64_t context = 8192;  // tokens that must fit beside the weights, the model's limit if that is less
  std::string memory;      // that may be used; empty: what is available
};

// What was, or was not, fetched: {"path", "fetched"} and `more`, or `line` unless that is empty.
void report_fetch(const GetFlags& flags, const std::filesystem::path& path, bool fetched,
                  const std::string& line,
                  const nlohmann::ordered_json& more = nlohmann::ordered_json::object());
int list_starters(bool json);
int get_starter(const StarterModel& model, const GetFlags& flags);
int get_from_hub(hub::ModelReference reference, const GetFlags& flags);

}  // namespace kvasir::cli
