// `kvasir eval logits`: the logits of every position of a token list, as a file. The row can run beside
// others that must not matter, and can be stored on disk half-way and taken up again by another process.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/conversation_store.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/logit_run.h"

namespace kvasir::cli {
namespace {

// The name of the entry that --save-at writes; a later one replaces it.
constexpr char kSavedName[] = "eval-logits";

struct LogitsFlags {
  LoadFlags load;
  std::string tokens;
  std::string out;
  std::vector<std::string> with;
  std::optional<uint64_t> schedule;
  std::pair<int64_t, std::string> save = {-1, ""};
  std::string resume;
  bool json = false;
};

// The stored row; its tokens must be the first ones of `ids`.
engine::Context resume(engine::Engine& engine, const LogitsFlags& flags, const std::filesystem::path& model,
                       const std::vector<int32_t>& ids) {
  if (!std::filesystem::is_directory(flags.resume))
    throw_error(ErrorCode::not_found, "--resume {}: there is no such folder; --save-at N DIR makes one",
                printable(flags.resume));
  const auto accept = [&](const kv::KvkHeader& header) {
    const size_t count = header.tokens.size();
    if (count >= ids.size())
      throw_error(ErrorCode::invalid_input,
                  "--resume {}: {} tokens are stored, and {} has {}: nothing is left to evaluate",
                  printable(flags.resume), count, printable(flags.tokens), ids.size());
    for (size_t i = 0; i < count; ++i)
      if (header.tokens[i] != ids[i])
        throw_error(
            ErrorCode::invalid_input,
            "--resume {}: the stored tokens are not the beginning of {}: token {} is {} there and {} here",
            printable(flags.resume), printable(flags.tokens), i, header.tokens[i], ids[i]);
  };
  kv::DiskStore::Conversation stored =
      open_store(flags.resume, engine, model, false)
          ->load(kSavedName, "", engine.cache(), &engine.executor().team(), accept);
  return {std::move(stored.sequence), std::move(stored.tokens)};
}

int eval_logits(const LogitsFlags& flags) {
  const std::vector<int32_t> ids = read_token_file(flags.tokens);
  if (ids.empty())
    throw_error(ErrorCode::invalid_input, "{}: the list of token ids is empty", printable(flags.tokens));
  const auto length = static_cast<int64_t>(ids.size());
  const bool saves = !flags.save.second.empty();
  if (saves && (flags.save.first < 1 || flags.save.first > length))
    throw_error(ErrorCode::invalid_input, "--save-at {}: expected 1 to the number of tokens ({})",
                flags.save.first, length);
  // Before half of the row is computed. What is not there yet is made.
  if (std::error_code ignored; saves && std::filesystem::exists(flags.save.second, ignored) &&
                               !std::filesystem::is_directory(flags.save.second, ignored))
    throw_error(ErrorCode::not_found, "--save-at: {}: Not a directory", printable(flags.save.second));
  engine::LogitRun run;
  for (const std::string& file : flags.with) {
    run.with.push_back(read_token_file(file));
    if (run.with.back().empty())
      throw_error(ErrorCode::invalid_input, "{}: the list of token ids is empty", printable(file));
  }
  run.schedule = flags.schedule;
  engine::EngineOptions options = flags.load.options();
  if (options.load.context == 0) options.load.context = length;
  if (length > options.load.context)
    throw_error(ErrorCode::invalid_input, "{} holds {} tokens, more than --context {}",
                printable(flags.tokens), length, options.load.context);
  options.load.rows = engine::rows_with_neighbours(run.with.size());
  options.load.chunk =
      std::max(options.load.rows, static_cast<int>(std::min<int64_t>(options.load.chunk, length)));
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  options.checkpoints = !run.with.empty();
  const std::filesystem::path path = resolve_model(flags.load.model);
  options.load.accept = [&](const models::ModelInfo& info) {
    models::check_tokens(ids, info.vocab, flags.tokens);
    for (size_t i = 0; i < run.with.size(); ++i) models::check_tokens(run.with[i], info.vocab, flags.with[i]);
  };
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);

  engine::Context row = flags.resume.empty() ? engine->new_context() : resume(*engine, flags, path, ids);
  const auto first = static_cast<int64_t>(row.tokens.size());
  if (saves && flags.save.first < first)
    throw_error(ErrorCode::invalid_input, "--save-at {}: the resumed row has {} tokens already",
                flags.save.first, first);
  const int64_t vocab = engine->model().info().vocab;
  NpyWriter writer(flags.out, length - first, vocab);
  Progress progress("evaluating");
  run.row = &row;
  run.ids = std::span<const int32_t>(ids).subspan(row.tokens.size());
  run.cancelled = interrupted;
  run.visit = [&](int64_t position, const float* logits) {
    writer.write({logits, static_cast<size_t>(vocab)});
    progress.update(static_cast<double>(position + 1 - first), static_cast<double>(length - first));
  };
  if (saves) {
    run.pause_at = flags.save.first;
    run.on_pause = [&] {
      open_store(flags.save.second, *engine, path, true)->save(kSavedName, "", row.tokens, row.sequence, "");
    };
  }
  run_logits(*engine, run);
  writer.finish();
  progress.done();
  if (flags.json)
    print_json({{"out", flags.out},
                {"first_position", first},
                {"positions", length - first},
                {"vocab", vocab},
                {"activations", models::name(engine->model().info().activations)},
                {"isa", kvasir::name(engine->model().info().isa)},
                {"kv", engine->memory().kv_key}});
  return kExitDone;
}

}  // namespace

void add_eval_logits(CLI::App& eval, Invocation& invocation) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = eval.add_subcommand("logits", "Write the logits of every position as float32 [T, V]");
  flags->load.add_to(*command, false);
  add_text(*command, "--tokens", flags->tokens, kFileValue, "JSON list of token ids; none is added")
      ->required();
  add_output(*command, "--out", flags->out, "The .npy file to write")->required();
  add_list(*command, "--with", flags->with, kFileValue,
           "Token ids of another row in the same batch; it changes no bit of the result");
  add_unsigned(*command, "--schedule", flags->schedule, "SEED",
               "Seed of who joins and leaves when, chunks, forks, truncations, rollbacks (default with "
               "--with: 0)");
  command
      ->add_option("--save-at", CLI::callback_t([flags](const CLI::results_t& results) {
                     flags->save = {parse_whole("--save-at N DIR", results[0], 1, INT32_MAX), results[1]};
                     return true;
                   }),
                   "Store the row in DIR when it has N tokens, then go on")
      ->expected(2)
      ->type_name("N DIR");
  add_text(*command, "--resume", flags->resume, kFolderValue,
           "Begin after the tokens stored there; rows from N on are written");
  command->add_flag("--json", flags->json, "Say what was written as JSON");
  command->footer(
      "Example: kvasir eval logits model.gguf --tokens ids.json --out logits.npy\n"
      "The context limit is the number of tokens unless --context says otherwise; rows\n"
      "of --with are cut to it.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return eval_logits(*flags); }; });
}

}  // namespace kvasir::cli
