#include "hub/select.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "base/ascii.h"
#include "base/error.h"
#include "formats/file_names.h"
#include "formats/json.h"

namespace kvasir::hub {
namespace {

constexpr std::string_view kGguf = ".gguf";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return is_digit(c) || (c >= 'A' && c <= 'Z') || c == '_';
}

// The names that quantizers give their files, longest first so that the longest one that matches is taken.
std::span<const std::string> quant_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = {"F64", "F32",   "F16",   "FP32",      "FP16",  "BF16",
                                      "FP8", "TQ1_0", "TQ2_0", "MXFP4_MOE", "MXFP4", "NVFP4"};
    for (const char* bits : {"1", "2", "3", "4", "5", "6", "8"}) {
      for (const char* kind : {"_0", "_1", "_K", "_K_S", "_K_M", "_K_L", "_K_XL", "_K_XXL", "_K_P", "_0_4_4",
                               "_0_4_8", "_0_8_8"})
        names.push_back(std::string("Q") + bits + kind);
      for (const char* kind :
           {"_XXS", "_XS", "_S", "_M", "_NL", "_NL_XL", "_KT", "_K", "_KS", "_KSS", "_KL", "_XXS_R4"})
        names.push_back(std::string("IQ") + bits + kind);
    }
    std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() > b.size() : a < b;
    });
    return names;
  }();
  return kNames;
}

bool is_root(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

bool is_safetensors(std::string_view path) {
  return path.ends_with(".safetensors");
}

}  // namespace

bool GgufGroup::is_unquantized() const {
  static const std::set<std::string, std::less<>> kPlain = {"F64", "F32", "F16", "FP32", "FP16", "BF16"};
  return kPlain.contains(quant);
}

std::string quant_in_name(std::string_view file_name) {
  const std::string name = ascii_upper(file_name);
  // The name ends with the quantization as a rule ("Model-7B-Q4_K_M.gguf"): the last match counts.
  size_t best = std::string::npos;
  std::string found;
  for (const std::string& quant : quant_names())
    for (size_t at = name.find(quant); at != std::string::npos; at = name.find(quant, at + 1)) {
      const bool begins = at == 0 || !is_word(name[at - 1]);
      const size_t end = at + quant.size();
      const bool ends = end == name.size() || !is_word(name[end]);
      if (!begins || !ends || (best != std::string::npos && at <= best)) continue;
      best = at;
      found = quant;
    }
  if (!found.empty() && best >= 3 && name.compare(best - 3, 3, "UD-") == 0) found = "UD-" + found;
  return found;
}

bool split_part(std::string_view path, std::string* stem, uint32_t* number, uint32_t* count) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return false;
  const std::string_view tail = path.substr(path.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i)
    if (kPattern[i] == '0' ? !is_digit(tail[i]) : tail[i] != kPattern[i]) return false;
  std::from_chars(tail.data() + 1, tail.data() + 6, *number);
  std::from_chars(tail.data() + 10, tail.data() + 15, *count);
  *stem = std::string(path.substr(0, path.size() - kPattern.size()));
  return true;
}

std::vector<GgufGroup> gguf_groups(std::span<const RemoteFile> files) {
  std::map<std::string, GgufGroup> groups;
  std::map<std::string, uint32_t> counts;
  for (const RemoteFile& file : files) {
    if (!file.path.ends_with(kGguf)) continue;
    const std::string name = ascii_upper(file.name());
    if (name.find("MMPROJ") != std::string::npos || name.find("IMATRIX") != std::string::npos) continue;
    std::string stem;
    uint32_t number = 1, count = 1;
    if (!split_part(file.path, &stem, &number, &count))
      stem = file.path.substr(0, file.path.size() - kGguf.size());
    GgufGroup& group = groups[stem];
    group.name = stem;
    group.parts.push_back(file);  // files are sorted by path: parts come in order
    group.bytes += file.size;
    counts[stem] = count;
    if (number != group.parts.size()) group.complete = false;
  }
  std::vector<GgufGroup> out;
  for (auto& [stem, group] : groups) {
    if (group.parts.size() != counts[stem]) group.complete = false;
    const size_t slash = stem.rfind('/');
    group.quant = quant_in_name(slash == std::string::npos ? stem : stem.substr(slash + 1));
    // "Q4_K_M/model-00001-of-00002.gguf": the folder says it.
    if (group.quant.empty() && slash != std::string::npos) group.quant = quant_in_name(stem.substr(0, slash));
    out.push_back(std::move(group));
  }
  std::sort(out.begin(), out.end(), [](const GgufGroup& a, const GgufGroup& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
  });
  return out;
}

const GgufGroup& find_quant(std::span<const GgufGroup> groups, std::string_view quant,
                            const std::string& repo) {
  const std::string wanted = ascii_upper(quant);
  const GgufGroup* found = nullptr;
  int exact = 0, prefix = 0;
  for (const GgufGroup& group : groups) {
    const size_t slash = group.name.rfind('/');
    const std::string base =
        ascii_upper(slash == std::string::npos ? group.name : group.name.substr(slash + 1));
    if (group.quant == wanted || base == wanted || ascii_upper(group.name) == wanted) {
      if (exact++ == 0) found = &group;
    } else if (exact == 0 && group.quant.starts_with(wanted)) {
      if (prefix++ == 0) found = &group;
    }
  }
  if (exact == 1 || (exact == 0 && prefix == 1)) return *found;
  std::string list;
  for (const GgufGroup& group : groups)
    list += fmt::format("{}  {:<14} {:>9.1f} MB  {}", list.empty() ? "" : "\n",
                        group.quant.empty() ? "-" : group.quant, static_cast<double>(group.bytes) / 1e6,
                        printable(group.parts.front().path));
  throw Error(ErrorCode::not_found,
              fmt::format("{}: {} quantization '{}': name one of these (or a file: {}/FILE)", repo,
                          exact + prefix == 0 ? "no" : "more than one", printable(quant), repo),
              std::move(list));
}

bool is_text_side(std::string_view path) {
  if (!is_root(path)) return path.starts_with("additional_chat_templates/") && path.ends_with(".jinja");
  if (path.ends_with(".json")) return path != "package.json";
  return path == "tokenizer.model" || path == "merges.txt" || path == "vocab.txt" ||
         path.ends_with(".tiktoken") || path.ends_with(".jinja");
}

std::vector<RemoteFile> safetensors_weights(const Listing& listing,
                                            std::span<const std::string> index_files) {
  std::vector<RemoteFile> out;
  for (const std::string& name : index_files) {
    const RemoteFile* file = listing.find(name);
    if (file == nullptr)
      throw_error(ErrorCode::not_found, "{}: {} names {}, which the repository lacks", listing.repo,
                  kSafetensorsIndex, printable(name));
    out.push_back(*file);
  }
  if (!index_files.empty()) return out;
  if (const RemoteFile* single = listing.find("model.safetensors")) return {*single};
  for (const RemoteFile& file : listing.files)
    if (is_root(file.path) && file.path.starts_with("model") && is_safetensors(file.path))
      out.push_back(file);
  return out;
}

std::vector<std::string> files_of_index(std::string_view json, const std::string& where) {
  const nlohmann::json index = formats::parse_json(json, where);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    throw_error(ErrorCode::corrupt_file, "{}: \"weight_map\" is missing", printable(where));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !formats::is_plain_file_name(file.get_ref<const std::string&>()))
      throw_error(ErrorCode::corrupt_file, "{}: invalid shard name for tensor {}", printable(where),
                  printable(tensor));
    names.insert(file.get<std::string>());
  }
  return {names.begin(), names.end()};
}

}  // namespace kvasir::hub
