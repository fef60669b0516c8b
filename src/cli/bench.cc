// `kvasir bench`: speed of prefill and decode, as fractions of what this machine can do, measured in the same
// run.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "base/topology.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/kv_report.h"
#include "cli/limits_report.h"
#include "cli/machine_state.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "engine/engine.h"

namespace kvasir::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct BenchFlags {
  LoadFlags load;
  int64_t prompt = 512;
  int64_t tokens = 64;
  int64_t depth = 0;
  int runs = 3;
  bool profile = false;
  bool force = false;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ids spread over the vocabulary, the same in every run.
std::vector<int32_t> synthetic_ids(int64_t count, int64_t vocab, uint64_t salt) {
  std::vector<int32_t> ids;
  uint64_t state = 0x9E3779B97F4A7C15u * (salt + 1);
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// Gives a new sequence `depth` tokens without running the model: its pages are written with a constant
// pattern (a small positive number in every float format, a middling code in every integer one), so that
// reading them costs what it would.
void fill_depth(engine::Engine& engine, engine::Context& context, int64_t depth) {
  kv::Step step;
  while (depth > 0) {
    const auto count = static_cast<int32_t>(
        std::min<int64_t>({depth, engine.model().maxima().tokens, context.sequence.max_append()}));
    engine.cache().reserve({&context.sequence}, {count}, step);
    const int32_t first = context.sequence.offset();
    for (const kv::GroupView& group : step.views()) {
      const kv::RowPages& row = group.rows[0];
      const int page_tokens = row.layout->geometry().page_tokens;
      for (int32_t page = first / page_tokens; page * page_tokens < first + count; ++page)
        if (page >= first / page_tokens && row.pages[page] != nullptr &&
            (page > first / page_tokens || first % page_tokens == 0))
          std::memset(row.pages[page], 0x3C, row.layout->page_bytes());
    }
    step.commit();
    depth -= count;
  }
}

struct StepCost {
  double weight_bytes = 0;
  double operations = 0;  // of products with weights, which are what the arithmetic limit is of
};

// What one step must read of the weights and compute with them, by the ops' own accounts.
StepCost step_cost(const models::Model& model, const program::Counts& counts) {
  StepCost cost;
  for (const program::Program* program : {&model.trunk(), &model.head()})
    for (size_t i = 0; i < program->ops().size(); ++i) {
      const program::OpCost c = program->cost(i, counts);
      if (c.weight_bytes == 0) continue;
      cost.weight_bytes += c.weight_bytes;
      cost.operations += c.operations;
    }
  return cost;
}

// Ops that read keys and values; what they read, only the step tells: rows may be at different depths, and
// stored in different forms.
std::vector<size_t> cache_readers(const program::Program& trunk, const program::StepState& step) {
  std::vector<size_t> ops;
  for (size_t i = 0; i < trunk.ops().size(); ++i)
    if (trunk.cost(i, step).kv_bytes > 0) ops.push_back(i);
  return ops;
}

// One row a kind of op; products by what they give (qkv, attention_out, activated, ...), in order of time.
void add_profile(Json& table, const models::Model& model, program::CpuExecutor& executor,
                 const MachineLimits& limits) {
  struct Sum {
    double seconds = 0, bytes = 0, operations = 0;
    int64_t runs = 0;
  };
  std::map<std::string, Sum> kinds;
  for (const program::Program* part : {&model.trunk(), &model.head()}) {
    const program::Program& program = *part;
    const std::vector<program::OpProfile> profile = executor.take_profile(program);
    for (size_t i = 0; i < profile.size(); ++i) {
      const program::Op& op = *program.ops()[i];
      std::string kind(op.kind());
      if (op.cost(1).weight_bytes > 0 && !op.outputs().empty())
        kind += " " + program.values()[static_cast<size_t>(op.outputs()[0].index)].name;
      Sum& sum = kinds[kind];
      sum.seconds += std::chrono::duration<double>(profile[i].time).count();
      sum.bytes += profile[i].cost.bytes;
      sum.operations += profile[i].cost.operations;
      sum.runs += profile[i].runs;
    }
  }
  std::vector<std::pair<std::string, Sum>> rows(kinds.begin(), kinds.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [kind, sum] : rows) {
    if (sum.runs == 0) continue;
    const double at_memory =
        limits.read_bandwidth_gb_s > 0 ? sum.bytes / (limits.read_bandwidth_gb_s * 1e9) : 0;
    const double at_peak =
        limits.peak_arithmetic_gop_s > 0 ? sum.operations / (limits.peak_arithmetic_gop_s * 1e9) : 0;
    table.push_back(
        {{"op", kind},
         {"runs", sum.runs},
         {"seconds", sum.seconds},
         {"gbytes", sum.bytes / 1e9},
         {"gops", sum.operations / 1e9},
         {"fraction_of_limit", sum.seconds > 0 ? std::max(at_memory, at_peak) / sum.seconds : 0}});
  }
}

void print_profile(const char* title, const Json& table) {
  std::printf("%s\n  %-24s %8s %10s %9s %9s %6s\n", title, "op", "runs", "ms", "GB", "Gop", "limit");
  for (const Json& row : table)
    std::printf("  %-24s %8lld %10.2f %9.3f %9.2f %5.0f%%\n", row["op"].get<std::string>().c_str(),
                static_cast<long long>(row["runs"]), row["seconds"].get<double>() * 1e3,
                row["gbytes"].get<double>(), row["gops"].get<double>(),
                row["fraction_of_limit"].get<double>() * 100);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// The limits around run `run`, of those measured after the warming run 0 and after each counted run.
MachineLimits around(const std::vector<MachineLimits>& limits, size_t run) {
  const MachineLimits &before = limits[run], &after = limits[run + 1];
  return {(before.read_bandwidth_gb_s + after.read_bandwidth_gb_s) / 2,
          (before.peak_arithmetic_gop_s + after.peak_arithmetic_gop_s) / 2};
}

int bench(const BenchFlags& flags) {
  engine::EngineOptions options = flags.load.options();
  const int64_t needed = std::max(flags.prompt, flags.depth + flags.tokens * (flags.runs + 1)) + 1;
  options.context_hint = needed;
  options.load.chunk = static_cast<int>(
      std::max<int64_t>(1, std::min<int64_t>(options.load.chunk, std::max<int64_t>(flags.prompt, 1))));
  const std::filesystem::path path = resolve_model(flags.load.model);
  MachineState machine;
  if (!machine.busy_before().empty() && !flags.force) {
    std::fprintf(
        stderr,
        "kvasir: this machine is busy, numbers measured now would say little: %s (--force measures all "
        "the same)\n",
        fmt::format("{}", fmt::join(machine.busy_before(), "; ")).c_str());
    return kExitFailure;
  }
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);
  models::Model& model = engine->model();
  if (needed > engine->context_limit())
    throw_error(ErrorCode::invalid_input,
                "{} tokens do not fit the context of {}: raise --context, or lower -p, -n or --depth", needed,
                engine->context_limit());
  const int64_t vocab = model.info().vocab;
  const int batch = std::max(1, flags.load.batch);
  LimitProbe probe(engine->executor().team(), model.info().isa, model.info().activations);
  std::vector<MachineLimits> measured;
  Json out = {{"schema_version", 1},
              {"model", flags.load.model},
              {"activations", models::name(model.info().activations)},
              {"isa", name(model.info().isa)},
              {"threads", engine->executor().team().size()},
              {"batch", batch},
              {"depth", flags.depth},
              {"prompt_tokens", flags.prompt},
              {"generated_tokens", flags.tokens},
              {"runs", flags.runs},
              {"prefill_tokens_per_s", nullptr},  // null: not asked for
              {"prefill_arithmetic_fraction", nullptr},
              {"prefill_bandwidth_fraction", nullptr},
              {"prefill_limit", nullptr},
              {"decode_tokens_per_s", nullptr},
              {"decode_bandwidth_fraction", nullptr},
              {"decode_arithmetic_fraction", nullptr},
              {"decode_limit", nullptr}};
  out = with_kv(std::move(out), *engine);
  // Of what `bytes` and `operations` take in the runs, as fractions of the limits around each.
  const auto report_fractions = [&](const std::string& phase, const std::vector<double>& seconds,
                                    const std::vector<MachineLimits>& limits,
                                    const std::vector<double>& bytes, double operations) {
    std::vector<double> read, computed;
    for (size_t run = 0; run < seconds.size(); ++run) {
      const MachineLimits of = around(limits, run);
      read.push_back(bytes[run] / seconds[run] / 1e9 / of.read_bandwidth_gb_s);
      computed.push_back(operations / seconds[run] / 1e9 / of.peak_arithmetic_gop_s);
    }
    const double memory = median(read), arithmetic = median(computed);
    out[phase + "_bandwidth_fraction"] = memory;
    out[phase + "_arithmetic_fraction"] = arithmetic;
    out[phase + "_limit"] = memory >= arithmetic ? "memory" : "arithmetic";  // the nearer one
  };
  const models::MemoryPlan& memory = model.memory();
  // Weights are counted as stored in the file; what a step reads of them is their packed form, a little
  // larger.
  const double stored_share = memory.weights_bytes > 0
                                  ? std::min(1.0, static_cast<double>(memory.stored_bytes) /
                                                      static_cast<double>(memory.weights_bytes))
                                  : 1;

  machine.begin();
  if (flags.prompt > 0) {
    const std::vector<int32_t> ids = synthetic_ids(flags.prompt, vocab, 1);
    std::vector<double> seconds;
    std::vector<MachineLimits> limits;  // one after each run
    for (int run = 0; run <= flags.runs; ++run) {
      engine::Context context = engine->new_context();
      if (run == flags.runs && flags.profile)
        for (const program::Program* program : {&model.trunk(), &model.head()})
          engine->executor().enable_profile(*program);
      const Clock::time_point start = Clock::now();
      engine->prefill(context, ids, engine::WantLogits::last);
      if (run > 0) seconds.push_back(seconds_since(start));  // the first run warms caches and clocks up
      limits.push_back(probe.measure());
      machine.after_run();
    }
    measured.insert(measured.end(), limits.begin(), limits.end());
    if (flags.profile) {
      out["prefill_profile"] = Json::array();
      add_profile(out["prefill_profile"], model, engine->executor(), around(limits, limits.size() - 2));
    }
    const double time = median(seconds);
    const StepCost cost = step_cost(model, {flags.prompt, 1, 1});
    const double operations = cost.operations;
    // Each step reads the weights again.
    const int64_t whole_steps = (flags.prompt + model.maxima().tokens - 1) / model.maxima().tokens;
    const auto steps = static_cast<double>(whole_steps);
    out["prefill_seconds"] = time;
    out["prefill_tokens_per_s"] = static_cast<double>(flags.prompt) / time;
    out["prefill_gop_s"] = operations / time / 1e9;
    report_fractions("prefill", seconds, limits,
                     std::vector<double>(seconds.size(), steps * cost.weight_bytes * stored_share),
                     operations);
  }

  if (flags.tokens > 0) {
    std::vector<engine::Context> contexts;
    for (int b = 0; b < batch; ++b) {
      contexts.push_back(engine->new_context());
      fill_depth(*engine, contexts.back(), flags.depth);
    }
    engine::StepBuilder builder(model);
    kv::Step step;
    std::vector<double> seconds, cache_bytes;  // of each counted run
    std::vector<size_t> readers;
    std::vector<MachineLimits> limits;  // one after each run
    const std::vector<int32_t> ids = synthetic_ids(flags.tokens * batch, vocab, 2);
    for (int run = 0; run <= flags.runs; ++run) {
      if (run == flags.runs && flags.profile)
        for (const program::Program* program : {&model.trunk(), &model.head()})
          engine->executor().enable_profile(*program);
      double run_bytes = 0;
      const Clock::time_point start = Clock::now();
      for (int64_t t = 0; t < flags.tokens; ++t) {
        builder.clear();
        for (int b = 0; b < batch; ++b)
          builder.add(contexts[static_cast<size_t>(b)].sequence,
                      std::span(ids).subspan(static_cast<size_t>(t * batch + b), 1),
                      engine::WantLogits::last);
        engine->cache().reserve(builder.sequences(), builder.counts(), step);
        program::StepState& state = builder.state(step);
        state.candidates = 1;  // the greedy choice is part of a step, as in generating
        if (readers.empty()) readers = cache_readers(model.trunk(), state);
        for (const size_t op : readers) run_bytes += model.trunk().cost(op, state).kv_bytes;
        model.run(state, engine->executor());
        step.commit();
      }
      if (run > 0) {
        seconds.push_back(seconds_since(start));
        cache_bytes.push_back(run_bytes);
      }
      limits.push_back(probe.measure());
      machine.after_run();
    }
    measured.insert(measured.end(), limits.begin(), limits.end());
    if (flags.profile) {
      out["decode_profile"] = Json::array();
      add_profile(out["decode_profile"], model, engine->executor(), around(limits, limits.size() - 2));
    }
    const double time = median(seconds) / static_cast<double>(flags.tokens);  // of one step
    const auto tokens = static_cast<double>(flags.tokens);
    const StepCost cost = step_cost(model, {batch, batch, batch});
    const double weights = cost.weight_bytes * stored_share;
    out["decode_operations"] = cost.operations;
    const double kv = median(cache_bytes) / tokens;
    out["decode_seconds_per_step"] = time;
    out["decode_tokens_per_s"] = batch / time;
    out["decode_weight_bytes"] = weights;
    out["decode_kv_bytes"] = kv;
    out["decode_gb_s"] = (weights + kv) / time / 1e9;
    std::vector<double> bytes;
    for (const double cached : cache_bytes) bytes.push_back(weights * tokens + cached);
    report_fractions("decode", seconds, limits, bytes, cost.operations * tokens);
  }
  if (measured.empty()) measured.push_back(probe.measure());
  std::vector<double> reads, peaks;
  for (const MachineLimits& limits : measured) {
    reads.push_back(limits.read_bandwidth_gb_s);
    peaks.push_back(limits.peak_arithmetic_gop_s);
  }
  out["read_bandwidth_gb_s"] = median(reads);
  out["peak_arithmetic_gop_s"] = median(peaks);
  out["read_bandwidth_gb_s_range"] = {*std::min_element(reads.begin(), reads.end()),
                                      *std::max_element(reads.begin(), reads.end())};
  out["ledger_bytes"] = engine->ledger().total();
  out["peak_resident_bytes"] = peak_resident_bytes();
  out["machine"] = machine.json();
  out["machine"]["forced"] = flags.force;

  if (flags.json) {
    print_json(out, 1);
    return kExitDone;
  }
  std::printf("%s  (%s activations, %s, %d threads)\n", printable_lines(flags.load.model).c_str(),
              std::string(models::name(model.info().activations)).c_str(),
              std::string(name(model.info().isa)).c_str(), engine->executor().team().size());
  std::printf("  limits   %6.1f GB/s read (%.1f to %.1f between runs), %7.0f Gop/s\n",
              out["read_bandwidth_gb_s"].get<double>(), out["read_bandwidth_gb_s_range"][0].get<double>(),
              out["read_bandwidth_gb_s_range"][1].get<double>(), out["peak_arithmetic_gop_s"].get<double>());
  const auto nearer = [&](const std::string& phase) {
    const auto limit = out[phase + "_limit"].get<std::string>();
    return fmt::format(
        "{:5.1f}% of the {} limit",
        out[phase + (limit == "memory" ? "_bandwidth_fraction" : "_arithmetic_fraction")].get<double>() * 100,
        limit);
  };
  if (flags.prompt > 0)
    std::printf("  prefill  %6lld tokens        %9.1f tokens/s  %s\n", static_cast<long long>(flags.prompt),
                out["prefill_tokens_per_s"].get<double>(), nearer("prefill").c_str());
  if (flags.tokens > 0)
    std::printf("  decode   %3d rows, depth %-6lld %8.1f tokens/s  %s\n", batch,
                static_cast<long long>(flags.depth), out["decode_tokens_per_s"].get<double>(),
                nearer("decode").c_str());
  std::fputs(machine.text().c_str(), stdout);
  if (out.contains("prefill_profile")) print_profile("prefill, last run", out["prefill_profile"]);
  if (out.contains("decode_profile")) print_profile("decode, last run", out["decode_profile"]);
  return kExitDone;
}

}  // namespace

void add_bench(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Speed, as fractions of this machine's limits");
  flags->load.add_to(*command);
  constexpr int64_t kMost = 1'000'000'000;
  add_whole(*command, "--prompt-tokens,-p", flags->prompt, "Prompt tokens (default 512; 0: no prefill)", 0,
            kMost);
  add_whole(*command, "--tokens,-n", flags->tokens, "Tokens to decode in a run (default 64; 0: no decode)", 0,
            kMost);
  add_whole(*command, "--depth", flags->depth, "Tokens already in the context when decoding starts", 0,
            kMost);
  add_whole(*command, "--runs", flags->runs,
            "Counted runs, after one that warms up; the median counts (default 3)", 1, 1000);
  command->add_flag("--profile", flags->profile,
                    "A table of ops: time, bytes, operations, fraction of the limit");
  command->add_flag("--force", flags->force, "Measure on a busy machine, too, and say that it was");
  add_json(*command, flags->json);
  command->footer("Example: kvasir bench smollm2 -p 512 -n 64 -t 2 --batch 4");
  command->callback([flags, &invocation] { invocation.work = [flags] { return bench(*flags); }; });
}

}  // namespace kvasir::cli
