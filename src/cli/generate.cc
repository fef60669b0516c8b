// `kvasir generate`: one prompt, one answer (or n), to stdout.
#include "cli/generate.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/batch.h"
#include "cli/command.h"
#include "cli/conversation_store.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/kv_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/rng.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

struct GenerateFlags {
  LoadFlags load;
  SamplingFlags sampling;
  PrefixFlags prefixes;
  std::string prompt;
  bool has_prompt = false;
  std::string file;
  std::string system;
  std::string resume;  // --continue
  bool raw = false;
  std::vector<std::string> set;
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int samples = 1;
  int logprobs = -1;
  BatchRun batch;
  bool json = false;
  bool quiet = false;
};

constexpr size_t kMostPrompt = size_t{64} << 20;

std::string read_prompt(const GenerateFlags& flags) {
  if (!flags.file.empty()) return read_input(flags.file, kMostPrompt);
  if (flags.has_prompt && flags.prompt != "-") return flags.prompt;
  if (!flags.has_prompt && isatty(STDIN_FILENO) != 0)
    throw_error(ErrorCode::invalid_input,
                "no prompt: give --prompt TEXT, --file FILE, or text on standard input");
  return read_input("-", kMostPrompt);
}

nlohmann::ordered_json logprob_entries(const engine::TextModel& model, const engine::Outcome& outcome) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const engine::Sampled& sampled : outcome.logprobs) {
    nlohmann::ordered_json entry = {
        {"id", sampled.id}, {"piece", model.tokenizer().piece(sampled.id)}, {"logprob", sampled.logprob}};
    entry["top"] = nlohmann::ordered_json::array();
    for (const engine::TokenLogprob& top : sampled.top)
      entry["top"].push_back(
          {{"id", top.id}, {"piece", model.tokenizer().piece(top.id)}, {"logprob", top.logprob}});
    list.push_back(std::move(entry));
  }
  return list;
}

// What the flags say of a request, alone or as the default of many.
BatchDefaults request_defaults(const GenerateFlags& flags) {
  BatchDefaults defaults;
  defaults.sampling = flags.sampling.options(0.7);
  defaults.max_tokens = flags.max_tokens;
  defaults.min_tokens = flags.min_tokens;
  defaults.stop = flags.stop;
  defaults.raw = flags.raw;
  defaults.ignore_eos = flags.ignore_eos;
  defaults.logprobs = flags.logprobs;
  defaults.system = flags.system;
  defaults.variables = engine::parse_variables(flags.set);
  return defaults;
}

int generate_lines(const GenerateFlags& flags) {
  BatchDefaults defaults = request_defaults(flags);
  // A run that names no seed can be resumed, too.
  if (!flags.sampling.seed) defaults.sampling.seed = 0;
  BatchRun run = flags.batch;
  run.quiet = flags.quiet;
  return run_batch(run, flags.load, defaults);
}

// The row that is stored under a name, with room for something after it.
engine::Context stored_row(const GenerateFlags& flags, engine::Engine& engine,
                           const std::filesystem::path& path) {
  const auto accept = [&](const kv::KvkHeader& header) {
    if (const int64_t limit = engine.context_limit(); header.offset() >= limit)
      throw_error(ErrorCode::invalid_input,
                  "--continue {}: it has {} tokens and the context holds {}: use a larger --context",
                  printable(flags.resume), header.offset(), limit);
  };
  kv::DiskStore::Conversation stored =
      open_store(flags.prefixes.store_folder(), engine, path, false)
          ->load(flags.resume, "", engine.cache(), &engine.executor().team(), accept);
  return {std::move(stored.sequence), std::move(stored.tokens)};
}

int generate(const GenerateFlags& flags) {
  engine::EngineOptions options = flags.load.options();
  BatchLine line;
  line.options = request_defaults(flags);
  const engine::SamplingOptions& sampling = line.options.sampling;
  if (flags.logprobs >= 0 && !flags.json)
    throw_error(ErrorCode::invalid_input, "--logprobs: they are part of --json and --jsonl alone");
  sampling.validate(INT32_MAX);
  line.prompt = read_prompt(flags);
  options.load.rows = std::max(options.load.rows, std::min(flags.samples, 16));
  flags.prefixes.apply(options, flags.samples > 1);
  Progress loading("loading");
  options.load.progress = loading.callback();
  std::vector<int32_t> ids;
  options.load.accept = [&](const models::ModelInfo& info) {
    sampling.validate(info.vocab);
    models::check_tokens(ids, info.vocab, "the prompt");
  };
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::TextSide text = open_text(path);
  // Templates take text; what is completed as it is may be any bytes.
  const bool raw = completes_as_it_is(line.options, text);
  note_no_template(line.options, text);
  if (raw) {
    note_utf8(line.prompt, "the prompt");
  } else {
    check_utf8(line.prompt, "the prompt");
    check_utf8(flags.system, "the system message");
  }
  if (!flags.resume.empty() && !raw)
    throw_error(ErrorCode::invalid_input,
                "--continue goes on with a text as it is: give --raw, or use `kvasir chat --continue {}`",
                printable(flags.resume));
  ids = encode_batch_line(line, text);
  if (!raw) note_unread_variables(text, line.options.variables, false);
  // A short answer does not need the model's whole context: when none is asked for, hold what this run can
  // use.
  if (options.load.context == 0 && flags.resume.empty())
    options.context_hint = tokens_needed(static_cast<int64_t>(ids.size()), flags.max_tokens);
  const std::unique_ptr<engine::TextModel> model = engine::TextModel::open(path, text, options);
  loading.done();
  flags.prefixes.note_unused(model->engine());
  engine::Context stored;
  if (!flags.resume.empty()) {
    stored = stored_row(flags, model->engine(), path);
    // What follows begins with a token of its own, and has no beginning of text before it.
    ids = engine::encode_prompt(text, line.prompt, true);
    ids.insert(ids.begin(), stored.tokens.begin(), stored.tokens.end());
  }

  // One answer streams as it comes; several, or JSON, are printed whole.
  const bool stream = flags.samples == 1 && !flags.json;
  Progress reading("reading the prompt");
  std::vector<engine::TextRequest> requests;
  for (int i = 0; i < flags.samples; ++i) {
    engine::TextRequest request;
    request.prompt = ids;
    request.sampling = sampling;
    request.sampling.seed = engine::sample_seed(sampling.seed, static_cast<uint64_t>(i));
    request.max_tokens = flags.max_tokens;
    request.min_tokens = flags.min_tokens;
    request.stop = flags.stop;
    request.ignore_eos = flags.ignore_eos;
    request.top_logprobs = flags.logprobs;
    if (!flags.resume.empty()) request.context = &stored;
    if (i == 0)
      request.on_progress = [&](int64_t done, int64_t total) {
        reading.update(static_cast<double>(done), static_cast<double>(total));
        if (done == total) reading.done();
      };
    if (stream)
      request.on_text = [](std::string_view piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      };
    requests.push_back(std::move(request));
  }
  const std::vector<engine::TextOutcome> results =
      engine::generate_text(*model, std::move(requests), [] { return interrupted() || output_failed(); });
  reading.done();
  if (flags.json) {
    if (flags.samples == 1) {
      print_json(with_kv(answer_json(*model, results[0], sampling.seed), model->engine()));
    } else {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (size_t i = 0; i < results.size(); ++i)
        list.push_back(
            with_kv(answer_json(*model, results[i], engine::sample_seed(sampling.seed, i)), model->engine()));
      print_json(list);
    }
  } else if (stream) {
    if (results[0].text.empty() || results[0].text.back() != '\n') std::printf("\n");
    std::fflush(stdout);
    const engine::Timings& t = results[0].outcome.timings;
    if (!flags.quiet && isatty(STDERR_FILENO) != 0)
      std::fprintf(
          stderr, "[%lld prompt tokens in %.2f s, %lld tokens at %.1f/s, seed %llu]\n",
          static_cast<long long>(t.prompt_tokens), t.prefill_seconds,
          static_cast<long long>(t.completion_tokens),
          t.decode_seconds > 0 ? static_cast<double>(t.completion_tokens - 1) / t.decode_seconds : 0.0,
          static_cast<unsigned long long>(sampling.seed));
  } else {
    for (size_t i = 0; i < results.size(); ++i)
      std::printf("--- %zu ---\n%s\n", i + 1, results[i].text.c_str());
  }
  if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
  return kExitDone;
}

}  // namespace

nlohmann::ordered_json answer_json(const engine::TextModel& model, const engine::TextOutcome& result,
                                   uint64_t seed) {
  const engine::Outcome& outcome = result.outcome;
  const engine::Timings& timings = outcome.timings;
  const double decode = timings.decode_seconds;
  nlohmann::ordered_json json = {
      {"text", result.text},
      {"token_ids", outcome.tokens},
      {"finish_reason", engine::name(outcome.reason)},
      {"prompt_tokens", timings.prompt_tokens},
      {"cached_tokens", timings.reused_tokens},
      {"completion_tokens", timings.completion_tokens},
      {"seed", seed},
      {"timings",
       {{"prefill_seconds", timings.prefill_seconds},
        {"decode_seconds", decode},
        {"prefill_tokens_per_s", timings.prefill_seconds > 0
                                     ? static_cast<double>(timings.prompt_tokens) / timings.prefill_seconds
                                     : 0},
        {"decode_tokens_per_s",
         decode > 0 ? static_cast<double>(timings.completion_tokens - 1) / decode : 0}}}};
  if (!result.matched_stop.empty()) json["stop"] = result.matched_stop;
  if (!outcome.logprobs.empty()) json["logprobs"] = logprob_entries(model, outcome);
  return json;
}

void add_generate(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<GenerateFlags>();
  auto system_path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt")->alias("gen");
  flags->load.add_to(*command);
  CLI::Option* prompt =
      add_text(*command, "--prompt,-p", flags->prompt, "TEXT", "The prompt ('-': standard input)");
  CLI::Option* file =
      add_text(*command, "--file", flags->file, kFileValue, "A file that holds the prompt")->excludes(prompt);
  CLI::Option* system =
      add_text(*command, "--system,--system-prompt", flags->system, "TEXT", "System message");
  CLI::Option* system_file =
      add_text(*command, "--system-file", *system_path, kFileValue, "A file that holds it")->excludes(system);
  command->add_flag("--raw", flags->raw, "No chat template: complete the text as it is");
  CLI::Option* set = add_list(*command, "--set", flags->set, "K=V", "A variable of the chat template");
  CLI::Option* named = add_text(*command, "--continue", flags->resume, "NAME",
                                "With --raw: the prompt follows the text of a stored conversation")
                           ->each([](const std::string& name) {
                             if (name.empty()) refuse_value(name, "a name");
                           })
                           ->excludes(system)
                           ->excludes(system_file);
  add_whole(*command, "--max-tokens,-n", flags->max_tokens, "Most tokens of the answer (default 256)", 0);
  CLI::Option* stop = add_stop(*command, flags->stop, "Text that ends the answer");
  CLI::Option* min_tokens =
      add_whole(*command, "--min-tokens", flags->min_tokens, "No end of answer before this many tokens", 0);
  CLI::Option* ignore_eos = command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past end tokens");
  CLI::Option* samples =
      add_whole(*command, "--samples,--n", flags->samples, "Answers to draw, in one batch", 1, 128);
  CLI::Option* logprobs = add_whole(*command, "--logprobs", flags->logprobs,
                                    "With JSON: the N likeliest tokens at each place", 0, 1 << 20);
  CLI::Option* json = add_json(*command, flags->json);
  CLI::Option* quiet = command->add_flag("--quiet,-q", flags->quiet, "No line about speed");
  CLI::Option* jsonl = add_text(*command, "--jsonl", flags->batch.input, kFileValue,
                                "Many prompts, one JSON object a line ('-': stdin)")
                           ->excludes(prompt)
                           ->excludes(file)
                           ->excludes(samples)
                           ->excludes(named)
                           ->excludes(json);
  CLI::Option* output = add_text(*command, "--output,-o", flags->batch.output, kFileValue,
                                 "Where their answers go, in order (default: stdout)")
                            ->needs(jsonl);
  CLI::Option* overwrite =
      command->add_flag("--overwrite", flags->batch.overwrite, "Begin --output again")->needs(output);
  CLI::Option* resume =
      command->add_flag("--resume", flags->batch.resume, "Keep the lines that --output holds, and go on")
          ->needs(output)
          ->excludes(overwrite);
  named->excludes(samples);
  minor({stop, samples, logprobs, set, named, system_file, min_tokens, ignore_eos, quiet, jsonl, output,
         overwrite, resume});
  flags->sampling.add_to(*command);
  flags->prefixes.add_to(*command);
  flags->prefixes.add_disk_to(*command);
  CLI::Option* folder = command->get_option("--prompt-cache-dir");
  CLI::Option* disk = command->get_option("--prompt-cache-disk");
  // The prompts of a file are computed each from its beginning.
  for (const char* flag : {"--prompt-cache", "--prompt-cache-disk", "--state-snapshot-interval"})
    jsonl->excludes(command->get_option(flag));
  command->footer(
      "Examples:\n"
      "  kvasir generate smollm2 --prompt 'Why is the sky blue?' --temperature 0\n"
      "  cat notes.txt | kvasir generate smollm2 --system 'Summarize.' -n 100\n"
      "  kvasir generate smollm2 --jsonl in.jsonl --output out.jsonl --batch 16");
  command->callback([flags, prompt, jsonl, folder, disk, named, system_file, system_path, &invocation] {
    if (folder->count() > 0 && disk->count() == 0 && named->count() == 0)
      throw CLI::RequiresError("--prompt-cache-dir", "--prompt-cache-disk or --continue");
    flags->has_prompt = prompt->count() > 0;
    const bool lines = jsonl->count() > 0;
    const bool from_file = system_file->count() > 0;
    invocation.work = [flags, lines, from_file, system_path] {
      install_interrupt_handler();
      if (from_file) flags->system = read_input(*system_path, kMostPrompt);
      return lines ? generate_lines(*flags) : generate(*flags);
    };
  });
}

}  // namespace kvasir::cli
