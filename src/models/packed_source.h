// Which packed file (formats/pack_file.h) belongs to which checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "formats/checkpoint.h"
#include "formats/pack_file.h"
#include "models/config.h"

namespace kvasir::models {

// A loading's choice of packed file.
struct PackChoice {
  enum class Use : uint8_t {
    off,        // pack in memory
    automatic,  // the file beside the model where there is one; one that does not match is left alone with a
                // note
    file,       // this file, or an error
  };
  Use use = Use::off;
  std::filesystem::path file;
};

// "off", "auto", or a file's name.
PackChoice pack_choice(const std::string& text);

// Where `kvasir pack` writes and `auto` looks: <model>.gguf.kpack beside a file, kvasir.kpack in a folder.
std::filesystem::path default_pack_path(const std::filesystem::path& model);

// What a note says when a packed file cannot be used.
std::string packed_in_memory(std::string_view why);

// What a packed file is made from: names, sizes and times of change of the files that hold tensors, their
// catalogue, and the configuration (which says how rows are permuted and parts combined). Not their contents:
// an edit that keeps size and time of change is not seen.
std::array<uint8_t, 16> source_identity(const formats::Checkpoint& checkpoint, const ModelConfig& config);

// The packed file that `choice` comes to, opened and belonging to this checkpoint; empty: pack in memory, and
// `note` says why when a file was there. With Use::file what is wrong with it is thrown: as by
// PackFile::open, Error{invalid_input} when it was packed from something else, Error{unsupported} for other
// layouts.
std::optional<formats::PackFile> find_pack(const PackChoice& choice, const formats::Checkpoint& checkpoint,
                                           const ModelConfig& config, size_t weights_bytes,
                                           std::string& note);

}  // namespace kvasir::models
