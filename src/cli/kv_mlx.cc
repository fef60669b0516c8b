#include "cli/kv_mlx.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/ordered_json.h"
#include "cli/conversation_store.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "kv/mlx_exchange.h"
#include "models/mlx_lm.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostText = size_t{64} << 20;

// What the cache's tokens are, and what a conversation of them says.
struct Imported {
  std::vector<int32_t> tokens;
  Json messages = Json::array();
  std::string system;
};

Json read_messages(const std::string& file) {
  Json messages = parse_ordered_json(read_input(file, kMostText), file);
  if (messages.is_object() && messages.contains("messages")) messages = Json(messages["messages"]);
  if (!are_messages(messages) || messages.empty())
    throw_error(ErrorCode::invalid_input,
                "{}: expected a JSON list of messages, each with a \"role\" and a \"content\" of text",
                printable(file));
  return messages;
}

// The tokens of the messages' template: with the beginning of an answer or without, whichever has as many as
// the cache; or, with --tokens, those, which must begin as the template does.
void take_messages(const MlxImportFlags& flags, const engine::TextSide& text, int32_t offset, Imported& out) {
  out.messages = read_messages(flags.messages);
  const Json& first = out.messages[0];
  if (first["role"] == "system") out.system = first["content"].get<std::string>();
  const auto encode = [&](bool answer) {
    return engine::encode_prompt(text, text.render(out.messages, nullptr, Json::object(), answer), true);
  };
  std::vector<int32_t> closed = encode(false), open = encode(true);
  if (!flags.tokens.empty()) {
    const auto common = static_cast<size_t>(
        std::max(kv::common_prefix(out.tokens, closed), kv::common_prefix(out.tokens, open)));
    if (common < std::min({out.tokens.size(), closed.size(), open.size()}))
      throw_error(ErrorCode::invalid_input,
                  "{} and {} begin with the same {} tokens only: these messages are not what the cache holds",
                  printable(flags.tokens), printable(flags.messages), common);
    return;
  }
  const auto wanted = static_cast<size_t>(offset);
  if (closed.size() != wanted && open.size() != wanted)
    throw_error(ErrorCode::invalid_input,
                "{}: its messages are {} tokens ({} with the beginning of an answer), and the cache holds "
                "{}: give the "
                "exact ones with --tokens",
                printable(flags.messages), closed.size(), open.size(), offset);
  out.tokens = closed.size() == wanted ? std::move(closed) : std::move(open);
}

Imported take_tokens(const MlxImportFlags& flags, const std::filesystem::path& model, int32_t offset) {
  Imported out;
  if (!flags.tokens.empty()) out.tokens = read_token_file(flags.tokens);
  if (!flags.text.empty()) {
    const std::string text = read_input(flags.text, kMostText);
    note_utf8(text, printable(flags.text));
    out.tokens = engine::encode_prompt(open_text(model), text, false);
  }
  if (!flags.messages.empty()) take_messages(flags, open_text(model), offset, out);
  if (out.tokens.size() != static_cast<size_t>(offset))
    throw_error(ErrorCode::invalid_input, "{} has {} tokens, and the cache holds {}",
                printable(flags.tokens.empty() ? flags.text : flags.tokens), out.tokens.size(), offset);
  return out;
}

const models::MlxLmFamily& family_of(std::string_view model_type, std::string_view what) {
  const models::MlxLmFamily* family = models::mlx_lm_family(model_type);
  if (family == nullptr)
    throw_error(ErrorCode::unsupported,
                "{}: caches of the family '{}' are not known to be the same in mlx-lm, so they are neither "
                "imported nor "
                "exported",
                printable(what), printable(model_type));
  return *family;
}

// Of the text behind a numerics id: "config=llama hidden=...".
std::string model_type_of(const kv::KvkHeader& header, const std::filesystem::path& entry) {
  constexpr std::string_view kConfig = "\nconfig=";
  const std::string& text = header.numerics;
  const size_t at = text.find(kConfig);
  if (at == std::string::npos)
    throw_error(ErrorCode::unsupported, "{}: it does not say which family its model is of", entry.string());
  const size_t begin = at + kConfig.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

}  // namespace

void MlxImportFlags::add_to(CLI::App& command) {
  load.add_to(command, false);
  command.get_option("MODEL")->required(false)->description(
      "The model of an mlx-lm cache, which goes on with it");
  add_text(command, "--name", name, "NAME", "What the conversation of an mlx-lm cache is called");
  CLI::Option* ids =
      add_text(command, "--tokens", tokens, kFileValue, "JSON list of the token ids that it holds");
  CLI::Option* plain = add_text(command, "--prompt-file", text, kFileValue,
                                "The text that it holds, as kvasir generate --raw --file reads it");
  CLI::Option* chat = add_text(command, "--messages", messages, kFileValue,
                               "JSON list of the messages that it holds, for kvasir chat to go on with");
  plain->excludes(ids)->excludes(chat);
}

bool is_kvk(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw_error(ErrorCode::invalid_input, "{}: is a folder", file.string());
  std::ifstream in(file, std::ios::binary);
  char magic[8] = {};
  if (!in) throw_error(ErrorCode::not_found, "{}: cannot be opened: {}", file.string(), std::strerror(errno));
  in.read(magic, sizeof magic);
  return in.gcount() == sizeof magic && std::memcmp(magic, "KVASIRKV", sizeof magic) == 0;
}

void import_mlx(const std::filesystem::path& file, const std::filesystem::path& store_folder,
                const MlxImportFlags& flags) {
  if (flags.load.model.empty() || flags.name.empty() ||
      (flags.tokens.empty() && flags.text.empty() && flags.messages.empty()))
    throw_error(ErrorCode::invalid_input,
                "{}: a cache of mlx-lm names neither its model nor its tokens: give MODEL, --name NAME, and "
                "--tokens, "
                "--prompt-file or --messages",
                file.string());
  constexpr std::string_view kBlanks = " \t\r\n";
  if (kBlanks.find(flags.name.front()) != std::string_view::npos ||
      kBlanks.find(flags.name.back()) != std::string_view::npos)
    throw_error(ErrorCode::invalid_input, "--name '{}': names have no blanks around them",
                printable(flags.name));
  const kv::MlxCacheFile cache = kv::MlxCacheFile::open(file);
  engine::EngineOptions options = flags.load.options();
  const std::filesystem::path path = resolve_model(flags.load.model);
  models::ModelInfo facts;  // from headers alone
  models::LoadOptions looking = options.load;
  looking.threads = 1;
  models::Model::plan(path, looking, &facts);
  family_of(facts.model_type, flags.load.model);
  const Imported imported = take_tokens(flags, path, cache.offset());
  models::check_tokens(imported.tokens, facts.vocab, flags.tokens.empty() ? flags.name : flags.tokens);
  // And one token more: pages of encoded tokens are planned only where there will be some (--kv-start).
  options.context_hint =
      std::min<int64_t>(cache.offset() + 1, std::max<int64_t>(cache.offset(), facts.model_context));
  Progress loading("loading");
  options.load.progress = loading.callback();
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);
  loading.done();
  if (const int64_t limit = engine->context_limit(); cache.offset() > limit)
    throw_error(ErrorCode::invalid_input, "{}: it holds {} tokens, and the context {}", file.string(),
                cache.offset(), limit);
  const std::unique_ptr<kv::DiskStore> store = open_store(store_folder, *engine, path, true);
  const auto refuse_taken = [&] {
    if (store->holds(flags.name, ""))
      throw_error(ErrorCode::invalid_input,
                  "{}: another conversation '{}' is in {} already: remove it first, with `kvasir kv rm`",
                  file.string(), printable(flags.name), store_folder.string());
  };
  const kv::Sequence sequence = kv::import_mlx_cache(engine->cache(), cache, &engine->executor().team());
  refuse_taken();
  kv::WriteWatch watch;
  watch.publish = refuse_taken;  // by another process, meanwhile
  store->save(flags.name, "", imported.tokens, sequence,
              conversation_metadata(imported.messages, imported.system), watch);
}

void export_mlx(const std::filesystem::path& entry, const std::filesystem::path& file, kv::MlxForm form) {
  const kv::KvkFile stored = kv::KvkFile::open(entry, true);
  const models::MlxLmFamily& family = family_of(model_type_of(stored.header(), entry), entry.string());
  kv::export_mlx_cache(stored, file, form, family.windows);
}

}  // namespace kvasir::cli
