// `kvasir kv`: what a store of conversations and prefixes holds, without a model.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/conversation_store.h"
#include "cli/kv_mlx.h"
#include "cli/options.h"
#include "cli/output.h"
#include "kv/cache_shape.h"
#include "kv/store.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct KvFlags {
  std::string dir;
  std::string which;
  std::string file;
  std::string format = "kvk";
  bool overwrite = false;
  MlxImportFlags mlx;
  bool json = false;
};

// `verified`: every byte was read; otherwise the header alone, which cannot tell that an entry is sound.
Json entry_json(const kv::StoredFile& file, bool verified) {
  Json json = {{"path", file.path.string()}, {"bytes", file.bytes}, {"sound", Json()}};
  if (verified || !file.error.empty()) json["sound"] = file.error.empty();
  if (!file.error.empty()) json["error"] = file.error;
  json["name"] = file.header.name;
  json["tokens"] = file.header.tokens.size();
  json["model"] = file.header.identity.model_id;
  json["scheme"] = file.header.identity.scheme_key;
  json["computed_by"] = file.header.origin ? Json(file.header.origin.engine) : Json();  // null: kvasir
  return json;
}

int list(const KvFlags& flags, bool verify) {
  const std::filesystem::path dir =
      flags.dir.empty() ? default_store_folder() : std::filesystem::path(flags.dir);
  std::vector<kv::StoredFile> files;
  std::error_code ignored;
  // Until something is saved there is no default folder, and nothing wrong with that.
  if (!flags.dir.empty() || std::filesystem::exists(dir, ignored))
    files = verify ? kv::verify_store(dir) : kv::list_store(dir);
  size_t damaged = 0;
  Json all = Json::array();
  for (const kv::StoredFile& file : files) {
    damaged += !file.error.empty();
    if (flags.json) {
      all.push_back(entry_json(file, verify));
      continue;
    }
    if (file.error.empty())
      std::printf("%-24s %7zu tokens %8.1f MB  %s  %s%s\n",
                  file.header.name.empty() ? "(prefix)" : printable(file.header.name).c_str(),
                  file.header.tokens.size(), static_cast<double>(file.bytes) / 1e6,
                  file.header.identity.scheme_key.c_str(), file.path.filename().c_str(),
                  file.header.origin ? fmt::format("  by {}", file.header.origin.engine).c_str() : "");
    else
      std::printf("DAMAGED  %s\n", printable_lines(file.error).c_str());
  }
  if (flags.json) print_json(all, 1);
  if (!flags.json && !verify && files.empty()) std::printf("nothing is stored in %s\n", dir.c_str());
  if (damaged > 0)
    throw_error(ErrorCode::corrupt_file, "{}: {} of {} entries damaged", printable(dir.string()), damaged,
                files.size());
  if (!flags.json && verify) std::printf("%zu entries, all sound\n", files.size());
  return kExitDone;
}

// What is attached to the tokens: of whom, and how large; what its tensors are.
Json attachments_json(const kv::KvkHeader& header) {
  Json list = Json::array();
  for (const kv::KvkAttachment& attachment : header.attachments) {
    Json metadata = Json::object(), tensors = Json::array();
    uint64_t bytes = 0;
    for (const auto& [key, value] : attachment.metadata)
      std::visit([&, &name = key](const auto& fact) { metadata[name] = fact; }, value);
    for (const kv::KvkAttachment::Tensor& tensor : attachment.tensors) {
      tensors.push_back({{"dtype", name(tensor.dtype)}, {"shape", tensor.shape}});
      bytes += tensor.place.bytes;
    }
    list.push_back({{"schema", attachment.schema},
                    {"bytes", bytes},
                    {"metadata", std::move(metadata)},
                    {"tensors", std::move(tensors)}});
  }
  return list;
}

// Everything that a header says but its tokens and the places of its tensors.
Json header_json(const kv::KvkHeader& header) {
  Json groups = Json::array();
  for (const kv::KvkGroup& group : header.groups)
    groups.push_back({{"layers", group.owners},
                      {"geometry", kv::describe(group.geometry)},
                      {"page_tokens", group.geometry.page_tokens},
                      {"first_token", group.first}});
  const kv::StoreIdentity& identity = header.identity;
  return {{"layout", header.layout == kv::KvkHeader::Layout::pages ? "pages" : "dense"},
          {"created_ms", header.created_ms},
          {"config_fingerprint", identity.config_fingerprint},
          {"weights_digest", identity.weights_digest},
          {"numerics_id", identity.numerics_id},
          {"tokenizer_hash", identity.tokenizer_hash},
          {"ns", identity.ns},
          {"imported_from", header.origin ? Json(header.origin.source) : Json()},
          {"min_reusable", header.min_reusable},
          {"encoded", header.encoded && std::any_of(header.groups.begin(), header.groups.end(),
                                                    [](const kv::KvkGroup& group) {
                                                      return !group.geometry.codec.is_plain();
                                                    })},
          {"trimmable", header.trimmable()},
          {"metadata_bytes", header.metadata.size()},
          {"groups", std::move(groups)},
          {"attachments", attachments_json(header)}};
}

int show(const KvFlags& flags, const std::filesystem::path& path) {
  const kv::StoredFile file = {path, std::filesystem::file_size(path), {}, kv::read_kvk_header(path)};
  Json json = entry_json(file, false);
  json.update(header_json(file.header));
  if (flags.json) {
    print_json(json, 1);
    return kExitDone;
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || key == "groups" || key == "attachments") continue;
    std::printf("%-18s  %s\n", key.c_str(),
                printable(value.is_string() ? value.get<std::string>() : json_text(value)).c_str());
  }
  for (const kv::KvkGroup& group : file.header.groups)
    std::printf("%-18s  %s, tokens from %d on\n", "kv", kv::describe(group.geometry).c_str(), group.first);
  for (const Json& attachment : json["attachments"])
    std::printf("%-18s  %s\n", "attachment", printable(json_text(attachment)).c_str());
  std::istringstream numerics(file.header.numerics);
  for (std::string line; std::getline(numerics, line);)
    if (line.size() < 200)
      std::printf("%s\n", printable(line).c_str());  // a whole configuration is no reading
  return kExitDone;
}

// What was done, and to which entry.
void say(const KvFlags& flags, const char* done, const std::string& entry) {
  if (flags.json)
    print_json({{done, entry}});
  else
    std::printf("%s %s\n", done, printable(entry).c_str());
}

}  // namespace

void add_kv(CLI::App& app, Invocation& invocation) {
  CLI::App* kv_command = app.add_subcommand("kv", "Conversations and prefixes stored on disk");
  kv_command->require_subcommand(1);
  kv_command->footer(
      "Examples:\n"
      "  kvasir kv ls\n"
      "  kvasir kv export holiday holiday.kvk\n"
      "  kvasir kv import cache.safetensors smollm2 --name holiday --messages chat.json");
  auto flags = std::make_shared<KvFlags>();
  auto sub = [&](const char* name, const char* help, std::function<int()> work) {
    CLI::App* command = kv_command->add_subcommand(name, help);
    add_text(*command, "--prompt-cache-dir", flags->dir, kFolderValue,
             "The store's folder (default: kvasir chat's)")
        ->each(refuse_no_folder);
    add_json(*command, flags->json);
    command->callback([work = std::move(work), &invocation] { invocation.work = work; });
    return command;
  };
  auto add_folder = [flags](CLI::App* command) {
    add_text(*command, "DIR", flags->dir, kFolderValue, "The store's folder")
        ->each(refuse_no_folder)
        ->excludes(command->get_option("--prompt-cache-dir"));
  };
  auto add_entry = [flags](CLI::App* command) {
    add_text(*command, "ENTRY", flags->which, "ENTRY",
             "A saved name, a file name, or 4 or more digits that one begins with")
        ->required();
  };
  auto add_file = [flags](CLI::App* command, const char* help) {
    add_text(*command, "FILE", flags->file, kFileValue, help)->required();
  };
  add_folder(sub("ls", "List what is stored", [flags] { return list(*flags, false); }));
  add_folder(sub("verify", "Read every byte and compare every hash; exit 0 only if all is sound",
                 [flags] { return list(*flags, true); }));
  auto folder = [flags] {
    return flags->dir.empty() ? default_store_folder() : std::filesystem::path(flags->dir);
  };
  add_entry(sub("show", "One entry's header",
                [flags, folder] { return show(*flags, kv::find_entry(folder(), flags->which)); }));
  add_entry(sub("rm", "Remove one entry", [flags, folder] {
    const std::filesystem::path path = kv::find_entry(folder(), flags->which);
    std::filesystem::remove(path);
    say(*flags, "removed", path.filename().string());
    return kExitDone;
  }));
  CLI::App* export_command =
      sub("export", "Write one entry to a file that is independent of page sizes", [flags, folder] {
        const std::filesystem::path entry = kv::find_entry(folder(), flags->which);
        std::error_code ignored;
        if (std::filesystem::equivalent(entry, flags->file, ignored))
          throw_error(ErrorCode::invalid_input, "{}: is the entry itself", printable(flags->file));
        if (!flags->overwrite && std::filesystem::is_regular_file(flags->file, ignored))
          throw_error(ErrorCode::invalid_input, "{}: exists; --overwrite replaces it",
                      printable(flags->file));
        if (flags->format == "kvk")
          kv::export_entry(entry, flags->file);
        else
          export_mlx(entry, flags->file,
                     flags->format == "mlx-lm" ? kv::MlxForm::from_0_32 : kv::MlxForm::before_0_32);
        say(*flags, "exported", flags->file);
        return kExitDone;
      });
  add_entry(export_command);
  add_file(export_command, "The file to write");
  add_choice(*export_command, "--format", flags->format, {"kvk", "mlx-lm", "mlx-lm-0.31"},
             "kvk (default), a prompt cache of mlx-lm 0.32 or later, or of mlx-lm before that");
  export_command->add_flag("--overwrite", flags->overwrite, "Replace the file if it is there");
  CLI::App* import_command = sub("import", "Add a file to the store", [flags, folder] {
    if (is_kvk(flags->file)) {
      if (flags->mlx.any() || !flags->mlx.load.model.empty())
        throw_error(
            ErrorCode::invalid_input,
            "{}: a .kvk file says itself of which model and tokens it is: MODEL and its flags are for the "
            "caches of mlx-lm",
            printable(flags->file));
      say(*flags, "imported", kv::import_entry(flags->file, folder()));
    } else {
      import_mlx(flags->file, folder(), flags->mlx);
      say(*flags, "imported", flags->mlx.name);
    }
    return kExitDone;
  });
  add_file(import_command, "A .kvk file, or a prompt cache of mlx-lm (.safetensors)");
  flags->mlx.add_to(*import_command);
}

}  // namespace kvasir::cli
