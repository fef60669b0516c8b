// `kvasir generate`: one prompt, one answer (or n), to stdout.
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/flags.h"
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
  bool raw = false;
  std::vector<std::string> set;
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int n = 1;
  int logprobs = -1;
  bool json = false;
  bool quiet = false;
};

std::string read_prompt(const GenerateFlags& flags) {
  if (!flags.file.empty()) return read_file(flags.file, size_t{64} << 20);
  if (flags.has_prompt && flags.prompt != "-") return flags.prompt;
  if (!flags.has_prompt && isatty(STDIN_FILENO) != 0)
    throw_error(ErrorCode::invalid_input,
                "no prompt: give --prompt TEXT, --file FILE, or text on standard input");
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
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

nlohmann::ordered_json to_json(const engine::TextModel& model, const engine::TextOutcome& result,
                               const GenerateFlags& flags, uint64_t seed) {
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
  if (flags.logprobs >= 0) json["logprobs"] = logprob_entries(model, outcome);
  return json;
}

int generate(const GenerateFlags& flags) {
  const std::string prompt = read_prompt(flags);
  engine::EngineOptions options = flags.load.options();
  if (flags.n < 1 || flags.n > 128)
    throw_error(ErrorCode::invalid_input, "--n must be from 1 to 128, got {}", flags.n);
  if (flags.max_tokens < 0)
    throw_error(ErrorCode::invalid_input, "--max-tokens must be >= 0, got {}", flags.max_tokens);
  const engine::SamplingOptions sampling = flags.sampling.options(0.7);
  sampling.validate(INT32_MAX);
  options.load.rows = std::max(options.load.rows, std::min(flags.n, 16));
  flags.prefixes.apply(options, flags.n > 1);
  Progress loading("loading");
  options.load.progress = [&](size_t done, size_t total) {
    loading.update(static_cast<double>(done), static_cast<double>(total));
    return !interrupted();
  };
  const std::filesystem::path path = resolve_model(flags.load.model);
  // A short answer does not need the model's whole context: when none is asked for, hold what this run can
  // use.
  const engine::TextSide text = engine::TextSide::open(path);
  std::string rendered = prompt;
  const bool templated = !flags.raw && text.has_template();
  if (templated) {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    rendered = text.render(messages, nullptr, engine::parse_variables(flags.set));
  } else if (!flags.system.empty()) {
    throw_error(ErrorCode::invalid_input, "--system needs a chat template, and {}",
                flags.raw ? "--raw asks for none" : "this model has none");
  }
  const std::vector<int32_t> ids = engine::encode_prompt(text, rendered, templated);
  if (options.load.context == 0)
    options.context_hint = static_cast<int64_t>(ids.size()) + flags.max_tokens + 1;
  const std::unique_ptr<engine::TextModel> model = engine::TextModel::open(path, text, options);
  loading.done();

  // One answer streams as it comes; several, or JSON, are printed whole.
  const bool stream = flags.n == 1 && !flags.json;
  Progress reading("reading the prompt");
  std::vector<engine::TextRequest> requests;
  for (int i = 0; i < flags.n; ++i) {
    engine::TextRequest request;
    request.prompt = ids;
    request.sampling = sampling;
    request.sampling.seed = engine::sample_seed(sampling.seed, static_cast<uint64_t>(i));
    request.max_tokens = flags.max_tokens;
    request.min_tokens = flags.min_tokens;
    request.stop = flags.stop;
    request.ignore_eos = flags.ignore_eos;
    request.top_logprobs = flags.logprobs;
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
      engine::generate_text(*model, std::move(requests), [] { return interrupted(); });
  reading.done();
  if (flags.json) {
    if (flags.n == 1) {
      std::printf("%s\n", to_json(*model, results[0], flags, sampling.seed).dump().c_str());
    } else {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (size_t i = 0; i < results.size(); ++i)
        list.push_back(to_json(*model, results[i], flags, engine::sample_seed(sampling.seed, i)));
      std::printf("%s\n", list.dump().c_str());
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
  return results[0].outcome.reason == engine::FinishReason::cancelled ? kExitInterrupted : kExitDone;
}

}  // namespace

void add_generate(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt")->alias("gen");
  flags->load.add_to(*command);
  CLI::Option* prompt = command->add_option("--prompt,-p", flags->prompt, "The prompt ('-': standard input)");
  command->add_option("--file", flags->file, "A file that holds the prompt")->excludes(prompt);
  command->add_option("--system", flags->system, "System message");
  command->add_flag("--raw", flags->raw, "No chat template: complete the text as it is");
  command->add_option("--set", flags->set, "K=V: a variable of the chat template, repeatable");
  command->add_option("--max-tokens,-n", flags->max_tokens, "Most tokens of the answer (default 256)");
  command->add_option("--min-tokens", flags->min_tokens, "No end of answer before this many tokens");
  command->add_option("--stop", flags->stop, "Text that ends the answer, repeatable")
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past end tokens");
  command->add_option("--samples", flags->n, "Answers to draw, in one batch");
  command->add_option("--logprobs", flags->logprobs, "With --json: the most likely tokens at each position");
  command->add_flag("--json", flags->json, "Machine-readable output");
  command->add_flag("--quiet,-q", flags->quiet, "No line about speed");
  flags->sampling.add_to(*command);
  flags->prefixes.add_to(*command);
  command->footer(
      "Examples:\n"
      "  kvasir generate smollm2 --prompt 'Why is the sky blue?' --temperature 0\n"
      "  cat notes.txt | kvasir generate smollm2 --system 'Summarize.' --max-tokens 100\n"
      "  kvasir generate gemma3-270m --raw --prompt 'Once upon a time' --seed 7 --json");
  command->callback([flags, prompt, &invocation] {
    flags->has_prompt = prompt->count() > 0;
    invocation.work = [flags] { return generate(*flags); };
  });
}

}  // namespace kvasir::cli
