// Whether a model that is here takes images beside text, as its small files and headers say. Kvasir reads the
// text of such models alone.
#pragma once

#include <optional>
#include <string>

#include "hub/local_stores.h"

namespace kvasir::cli {

// The kind of the model's vision part, where it has one; it may be empty. A folder: model_type of
// config.json's vision_config. A GGUF file: the projector of a file of architecture "clip" that belongs to it
// (in its folder or at the top of its snapshot; in kvasir's own folder, where all models lie beside each
// other, one with the model's name in its own; Ollama's is named by the manifest), or a vision section in its
// own keys. Files that cannot be read say nothing.
std::optional<std::string> image_input(const hub::LocalModel& model);

}  // namespace kvasir::cli
