// What `kvasir get` is made of: starter models from packages, everything else from a Hugging Face hub.
#pragma once

#include <string>

#include "cli/starter_models.h"
#include "hub/reference.h"

namespace kvasir::cli {

struct GetFlags {
  std::string model;
  bool if_missing = false;
  bool list = false;
  bool json = false;
  // Hub only.
  std::string revision;
  std::string quant;
  bool offline = false;
  bool force = false;  // also what this build cannot run or hold
  bool dry_run = false;
  int connections = 8;
  int retries = 5;
  int64_t context = 8192;  // tokens that must fit beside the weights, the model's limit if that is less
  std::string memory;      // that may be used; empty: what is available
};

int list_starters(bool json);
int get_starter(const StarterModel& model, const GetFlags& flags);
int get_from_hub(hub::ModelReference reference, const GetFlags& flags);

}  // namespace kvasir::cli
