// Names of files that stand inside other files, and links out of a model's folder (spec: formats.md 0.1, C9).
#pragma once

#include <filesystem>
#include <string_view>

namespace kvasir::formats {

// A file name and nothing else: not empty, ".", "..", no separator of any system, no NUL, no drive letter.
bool is_plain_file_name(std::string_view name);

// False when `path`, after following links, lies outside `folder`, except in the blobs of a Hugging Face
// cache whose snapshot `folder` is (.../snapshots/<revision> and .../blobs), or in that cache's blobs shared
// by all repositories (<hub>/models--.../snapshots/<revision> and <hub>/blobs).
bool stays_inside(const std::filesystem::path& folder, const std::filesystem::path& path);

}  // namespace kvasir::formats
