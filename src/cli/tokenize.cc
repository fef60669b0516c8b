// `kvasir tokenize`, `detokenize`, `render`: the text side of a checkpoint, without its weights.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/ordered_json.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeFlags {
  std::string model;
  std::string file;
  std::string text;
  bool has_text = false;
  bool no_special = false;
  bool no_parse_special = false;
  bool json = false;
};

int tokenize(const TokenizeFlags& flags) {
  std::string text;
  if (!flags.file.empty())
    text = read_input(flags.file, size_t{1} << 30);
  else if (flags.has_text)
    text = flags.text;
  else
    text = read_input("-", size_t{1} << 30);
  note_utf8(text, "the text");
  const engine::TextSide side = open_text(resolve_model(flags.model));
  const std::vector<int32_t> ids = side.tokenizer->encode(
      text, {.add_special = !flags.no_special, .parse_special = !flags.no_parse_special});
  if (flags.json) {
    Json pieces = Json::array();
    for (int32_t id : ids) pieces.push_back(side.tokenizer->piece(id));
    print_json({{"ids", ids}, {"pieces", std::move(pieces)}});
  } else {
    for (int32_t id : ids) std::printf("%7d  %s\n", id, printable(side.tokenizer->piece(id)).c_str());
  }
  return kExitDone;
}

int detokenize(const std::string& model, const std::string& ids_file, bool keep_special, bool json) {
  const std::vector<int32_t> ids = read_token_file(ids_file);
  const engine::TextSide side = open_text(resolve_model(model));
  side.tokenizer->check_ids(ids, ids_file);
  const std::string text = side.tokenizer->decode(ids, {.skip_special = !keep_special});
  if (json)
    print_json({{"text", text}});
  else
    std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

Json read_json(const std::string& path) {
  return parse_ordered_json(read_input(path, size_t{64} << 20), path);
}

struct RenderFlags {
  std::string model;
  std::string messages;
  std::string tools;
  std::vector<std::string> set;
  bool no_generation_prompt = false;
  bool json = false;
};

int render(const RenderFlags& flags) {
  const Json messages = read_json(flags.messages);
  const Json tools = flags.tools.empty() ? Json() : read_json(flags.tools);
  const engine::TextSide side = open_text(resolve_model(flags.model));
  const Json variables = engine::parse_variables(flags.set);
  const std::string text = side.render(messages, tools, variables, !flags.no_generation_prompt);
  note_unread_variables(side, variables, !tools.is_null());
  if (flags.json)
    print_json({{"prompt", text}});
  else
    std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace

void add_tokenize(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Text to token ids");
  add_model(*command, flags->model);
  CLI::Option* file =
      add_text(*command, "--file", flags->file, kFileValue, "Text file (default, and '-': standard input)");
  CLI::Option* text = add_text(*command, "--text", flags->text, "TEXT", "The text itself")->excludes(file);
  command->add_flag("--no-special", flags->no_special, "Add no BOS, EOS or SEP");
  command->add_flag("--no-parse-special", flags->no_parse_special,
                    "Special tokens written in the text are plain text");
  command->add_flag("--json", flags->json, "{\"ids\": [...], \"pieces\": [...]}");
  command->footer(
      "Examples:\n"
      "  kvasir tokenize smollm2 --text 'Hello world' --json\n"
      "  kvasir tokenize model.gguf --file notes.txt --no-special");
  command->callback([flags, text, &invocation] {
    flags->has_text = text->count() > 0;
    invocation.work = [flags] { return tokenize(*flags); };
  });
}

void add_detokenize(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string model, ids;
    bool keep_special = false, json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("detokenize", "Token ids to text")->group(kMinorGroup);
  add_model(*command, flags->model);
  add_text(*command, "--ids", flags->ids, kFileValue, "JSON list of token ids")->required();
  command->add_flag("--keep-special", flags->keep_special, "Write special tokens out");
  command->add_flag("--json", flags->json, "{\"text\": ...}");
  command->footer("Example: kvasir detokenize smollm2 --ids ids.json");
  command->callback([flags, &invocation] {
    invocation.work = [flags] {
      return detokenize(flags->model, flags->ids, flags->keep_special, flags->json);
    };
  });
}

void add_render(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* command =
      app.add_subcommand("render", "The prompt that the model's chat template makes of a conversation")
          ->group(kMinorGroup);
  add_model(*command, flags->model);
  add_text(*command, "--messages", flags->messages, kFileValue,
           "JSON list of messages ({\"role\", \"content\", ...})")
      ->required();
  add_text(*command, "--tools", flags->tools, kFileValue, "JSON list of tools");
  add_list(*command, "--set", flags->set, "K=V", "A variable of the template");
  command->add_flag("--no-generation-prompt", flags->no_generation_prompt,
                    "Do not open the assistant's turn");
  command->add_flag("--json", flags->json, "{\"prompt\": ...}");
  command->footer(
      "Example: kvasir render smollm2 --messages chat.json --tools tools.json\n"
      "The messages: [{\"role\": \"user\", \"content\": \"Hi\"}]");
  command->callback([flags, &invocation] { invocation.work = [flags] { return render(*flags); }; });
}

}  // namespace kvasir::cli
