// Every model on this machine, and the names by which MODEL finds them.
#pragma once

#include <vector>

#include "hub/local_stores.h"

namespace kvasir::cli {

// Kvasir's own folder, the Hugging Face cache, LM Studio, Ollama: in this order, sorted by name within each.
std::vector<hub::LocalModel> local_models();

// Those of `models` that `text` names in full or by the last part of the name ("name", "name:QUANT"), without
// regard to case. Full names win.
std::vector<const hub::LocalModel*> models_called(const std::vector<hub::LocalModel>& models,
                                                  std::string_view text);

}  // namespace kvasir::cli
