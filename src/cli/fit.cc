// `kvasir fit`: the memory contract, from headers alone.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/kv_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/memory_plan.h"
#include "formats/checkpoint.h"
#include "kv/scheme.h"

namespace kvasir::cli {
namespace {

struct FitFlags {
  LoadFlags load;
  PrefixFlags prefixes;
  bool chat = false;
  bool json = false;
  bool matrix = false;
  std::vector<std::string> contexts, schemes, batches;  // of the matrix; none: its own
};

// `chat`: as `kvasir chat` loads a model with these flags.
engine::EngineOptions options_of(const FitFlags& flags, bool chat) {
  engine::EngineOptions options = flags.load.options();
  options.checkpoints = chat;
  if (chat != flags.chat) options.load.note = {};  // said by the plan that was asked for
  flags.prefixes.apply(options, chat);
  return options;
}

engine::MemoryReport plan(const FitFlags& flags, const std::filesystem::path& path, bool chat) {
  return engine::Engine::plan(path, options_of(flags, chat));
}

int fit(const FitFlags& flags) {
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::MemoryReport report = plan(flags, path, flags.chat);
  const engine::MemoryReport chat = flags.chat ? report : plan(flags, path, true);
  std::vector<std::string> notes = report.kv_notes;
  if (const std::string problem = formats::Checkpoint::open(path).text_problem(); !problem.empty())
    notes.push_back(fmt::format("{}: {}: it fits, and no text can be generated with it",
                                printable(path.string()), problem));
  const bool kept = options_of(flags, flags.chat).prefix_cache;
  const int64_t interval = flags.prefixes.interval;
  if (const std::string unused = flags.prefixes.unused_interval(kept, report.resume_point_bytes > 0);
      !unused.empty())
    notes.push_back(unused);
  const bool points = kept && report.resume_point_bytes > 0;
  const int64_t in_context = points && interval > 0 ? (report.context - 1) / interval : 0;
  if (flags.json) {
    nlohmann::ordered_json out = {{"schema_version", 1},
                                  {"fits", report.fits},
                                  {"weights_bytes", report.weights_bytes},
                                  {"kv_bytes", report.kv_bytes},
                                  {"workspace_bytes", report.workspace_bytes},
                                  {"process_bytes", report.process_bytes},
                                  {"prefix_bytes", report.prefix_bytes},
                                  {"total_bytes", report.total_bytes},
                                  {"chat_total_bytes", chat.total_bytes},
                                  {"stored_bytes", report.stored_bytes},
                                  {"pack_file", report.pack_file},
                                  {"available_bytes", report.available_bytes},
                                  {"kv_bytes_per_token", report.kv_bytes_per_token},
                                  {"context", report.context},
                                  {"batch", flags.load.batch},
                                  {"model_context", report.model_context},
                                  {"max_context", report.max_context},
                                  {"kv", report.kv_key},
                                  {"kv_start", report.kv_start},
                                  {"notes", notes}};
    if (points)
      out["resume_points"] = {
          {"interval", interval}, {"in_context", in_context}, {"most_bytes_each", report.resume_point_bytes}};
    out["kv_groups"] = kv_groups_json(report.kv_groups, report.kv_start);
    for (size_t g = 0; g < report.kv_groups.size(); ++g) {
      const kv::GroupBytes& pool = report.kv_pools[g];
      out["kv_groups"][g]["pages"] = pool.pages;
      if (pool.plain_pages == 0) continue;
      out["kv_groups"][g]["plain_pages"] = pool.plain_pages;
      out["kv_groups"][g]["plain_page_bytes"] = pool.plain_page_bytes;
    }
    print_json(out, 1);
  } else {
    if (!report.pack_file.empty())
      std::printf("weights are mapped from %s, shared with other processes that do\n",
                  printable_lines(report.pack_file).c_str());
    std::printf("%s: %s\n%s\n", printable_lines(flags.load.model).c_str(),
                report.fits ? "fits" : "does not fit", engine::describe(report).c_str());
    for (const models::KvGroup& group : report.kv_groups)
      std::printf("  kv: %s\n", kv_group_text(group, report.kv_start).c_str());
    if (points)
      std::printf(
          "  points of a prompt that can be resumed: its end%s; at most %s each, of kv and prefixes\n",
          interval > 0
              ? fmt::format(", and every {} tokens ({} in a full context)", interval, in_context).c_str()
              : "",
          size_text(report.resume_point_bytes).c_str());
    for (const std::string& note : notes) std::printf("  note: %s\n", note.c_str());
    if (report.fits && !chat.fits)
      std::printf("  note: for kvasir chat it does not fit: %zu bytes (--chat)\n", chat.total_bytes);
  }
  return report.fits ? kExitDone : kExitDoesNotFit;
}

// ---- many plans in one table

struct Cell {
  int64_t context = 0;
  size_t scheme = 0;
  int batch = 0;
  std::optional<engine::MemoryReport> report;  // none: `problem`
  std::string problem;
};

struct Matrix {
  std::vector<int64_t> contexts;
  std::vector<std::string> schemes;  // as --kv takes them; empty: the model's plain one
  std::vector<int> batches;
  std::vector<std::string> names;  // [schemes]: as reports call them
  std::vector<Cell> cells;         // batch by batch, context by context, scheme by scheme
  size_t available_bytes = 0;
  int64_t model_context = 0;
  bool any_fits = false;
};

// Powers of two, from 1,024 or a quarter of a smaller limit, and the limit itself.
std::vector<int64_t> usual_contexts(int64_t limit) {
  constexpr int64_t kFirst = 1024;
  const auto largest = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(limit)));
  std::vector<int64_t> contexts;
  for (int64_t context = std::max<int64_t>(1, std::min(kFirst, largest / 4)); context <= largest;
       context *= 2)
    contexts.push_back(context);
  if (largest != limit) contexts.push_back(limit);
  return contexts;
}

Matrix axes(const FitFlags& flags, int64_t limit) {
  Matrix matrix;
  const auto whole = [](const char* flag, const std::string& text) {
    return parse_whole(flag, text, 1, INT32_MAX);
  };
  for (const std::string& text : flags.contexts) matrix.contexts.push_back(whole("--matrix-context", text));
  if (flags.load.context > 0) matrix.contexts = {flags.load.context};
  if (matrix.contexts.empty()) matrix.contexts = usual_contexts(limit);
  for (const std::string& text : flags.batches)
    matrix.batches.push_back(static_cast<int>(whole("--matrix-batch", text)));
  if (flags.load.has_batch()) matrix.batches = {flags.load.batch};
  if (matrix.batches.empty()) matrix.batches = {1, 4, 16};
  matrix.schemes = flags.schemes;
  if (!flags.load.kv.empty()) matrix.schemes = {flags.load.kv};
  if (matrix.schemes.empty()) matrix.schemes = {"", "q8_0", "rot:q6_0", "rot:q4_0"};
  matrix.names = matrix.schemes;
  return matrix;
}

// Every cell is what `kvasir fit` with its flags plans.
Matrix plan_matrix(const FitFlags& flags, const std::filesystem::path& path) {
  FitFlags one = flags;
  one.load.context = 0;
  one.load.kv.clear();
  one.load.kv_start = -1;  // of codecs
  const engine::MemoryReport first = engine::Engine::plan(path, [&] {
    engine::EngineOptions options = options_of(one, flags.chat);
    options.load.note = {};
    return options;
  }());
  Matrix matrix = axes(flags, first.model_context);
  matrix.available_bytes = first.available_bytes;
  matrix.model_context = first.model_context;
  const size_t total = matrix.batches.size() * matrix.contexts.size() * matrix.schemes.size();
  Progress progress("planning");
  std::optional<Error> refusal;
  bool any = false;
  for (const int batch : matrix.batches)
    for (const int64_t context : matrix.contexts)
      for (size_t scheme = 0; scheme < matrix.schemes.size(); ++scheme) {
        if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
        Cell cell{context, scheme, batch, {}, {}};
        one.load.context = context;
        one.load.batch = batch;
        one.load.kv = matrix.schemes[scheme];
        one.load.kv_start = matrix.schemes[scheme].empty() ? -1 : flags.load.kv_start;
        engine::EngineOptions options = options_of(one, flags.chat);
        options.load.note = {};
        try {
          cell.report = engine::Engine::plan(path, options);
          if (matrix.schemes[scheme].empty()) matrix.names[scheme] = cell.report->kv_key;
          matrix.any_fits |= cell.report->fits;
          any = true;
        } catch (const Error& error) {
          // A codec that this model's layers cannot take; or what is wrong with all of them.
          if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::invalid_input) throw;
          cell.problem = error.what();
          if (!refusal) refusal = error;
        }
        matrix.cells.push_back(std::move(cell));
        progress.update(static_cast<double>(matrix.cells.size()), static_cast<double>(total));
      }
  progress.done();
  if (!any) throw *refusal;  // NOLINT(cert-err09-cpp,cert-err61-cpp): a copy of what was caught
  return matrix;
}

nlohmann::ordered_json matrix_json(const Matrix& matrix) {
  nlohmann::ordered_json out = {{"schema_version", 1},
                                {"fits", matrix.any_fits},
                                {"available_bytes", matrix.available_bytes},
                                {"model_context", matrix.model_context},
                                {"contexts", matrix.contexts},
                                {"kv", matrix.names},
                                {"batches", matrix.batches},
                                {"cells", nlohmann::ordered_json::array()}};
  for (const Cell& cell : matrix.cells) {
    nlohmann::ordered_json entry = {
        {"context", cell.context}, {"kv", matrix.names[cell.scheme]}, {"batch", cell.batch}};
    if (cell.report)
      entry.update({{"fits", cell.report->fits},
                    {"total_bytes", cell.report->total_bytes},
                    {"weights_bytes", cell.report->weights_bytes},
                    {"kv_bytes", cell.report->kv_bytes},
                    {"workspace_bytes", cell.report->workspace_bytes},
                    {"process_bytes", cell.report->process_bytes},
                    {"prefix_bytes", cell.report->prefix_bytes}});
    else
      entry["problem"] = cell.problem;
    out["cells"].push_back(std::move(entry));
  }
  return out;
}

void print_matrix(const Matrix& matrix, const std::string& model) {
  std::printf("%s: total memory; in [brackets] what does not fit in %s\n", printable_lines(model).c_str(),
              size_text(matrix.available_bytes).c_str());
  constexpr int kColumn = 14;
  std::vector<int> widths;
  for (const std::string& name : matrix.names)
    widths.push_back(std::max(kColumn, static_cast<int>(name.size()) + 2));
  std::vector<std::string> problems;
  size_t at = 0;
  for (const int batch : matrix.batches) {
    std::printf("batch %-4d %10s", batch, "context");
    for (size_t scheme = 0; scheme < matrix.names.size(); ++scheme)
      std::printf("%*s", widths[scheme], matrix.names[scheme].c_str());
    std::printf("\n");
    for (const int64_t context : matrix.contexts) {
      std::printf("%21lld", static_cast<long long>(context));
      for (size_t scheme = 0; scheme < matrix.names.size(); ++scheme, ++at) {
        const Cell& cell = matrix.cells[at];
        std::string text = "-";
        if (cell.report)
          text = fmt::format(fmt::runtime(cell.report->fits ? "{} " : "[{}]"),
                             size_text(cell.report->total_bytes));
        else if (std::find(problems.begin(), problems.end(), cell.problem) == problems.end())
          problems.push_back(cell.problem);
        std::printf("%*s", widths[scheme], text.c_str());
      }
      std::printf("\n");
    }
  }
  for (const std::string& problem : problems) std::printf("  note: %s\n", printable_lines(problem).c_str());
}

int fit_matrix(const FitFlags& flags) {
  const std::filesystem::path path = resolve_model(flags.load.model);
  const Matrix matrix = plan_matrix(flags, path);
  if (flags.json)
    print_json(matrix_json(matrix), 1);
  else
    print_matrix(matrix, flags.load.model);
  return matrix.any_fits ? kExitDone : kExitDoesNotFit;
}

}  // namespace

void add_fit(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* command = app.add_subcommand("fit", "What a load will take in memory, from headers alone");
  command->add_flag("--chat", flags->chat,
                    "For kvasir chat: with a prompt cache, and windows of prompts that it comes back to");
  flags->load.add_to(*command);
  flags->prefixes.add_to(*command);
  CLI::Option* matrix = command->add_flag(
      "--matrix", flags->matrix,
      "A table: contexts against KV codecs and batches, those that are given or usual ones");
  const auto axis = [&](const char* name, std::vector<std::string>& target, const char* value,
                        const char* help, const char* single) {
    CLI::Option* option = add_list(*command, name, target, value, help)->needs(matrix);
    option->excludes(command->get_option(single));
    minor({option});
    return option;
  };
  for (CLI::Option* option :
       {axis("--matrix-context", flags->contexts, "N",
             "A context of --matrix (default: powers of two to the model's limit)", "--context"),
        axis("--matrix-batch", flags->batches, "N", "A batch of --matrix (default 1, 4, 16)", "--batch")}) {
    const std::string name = option->get_name();
    option->each([name](const std::string& text) { parse_whole(name, text, 1, INT32_MAX); });
  }
  axis("--matrix-kv", flags->schemes, "CODEC", "A codec of --matrix, as --kv takes it", "--kv")
      ->each([](const std::string& spec) {
        if (spec.empty()) refuse_value(spec, "a codec");
        // What only some layers cannot take is told in the table; what is no codec at all, here.
        if (!spec.starts_with("config") && !spec.starts_with("auto"))
          kv::parse_codec(spec, Dtype::bf16, "--matrix-kv " + spec);
      });
  add_json(*command, flags->json);
  command->footer(
      "Examples:\n"
      "  kvasir fit model.gguf --context 32768 --batch 4\n"
      "  kvasir fit model.gguf --matrix --batch 1\n"
      "Exit status 4 when it does not fit; of a matrix, when nothing in it does.");
  command->callback([flags, &invocation] {
    invocation.work = [flags] {
      if (!flags->matrix) return fit(*flags);
      install_interrupt_handler();
      return fit_matrix(*flags);
    };
  });
}

}  // namespace kvasir::cli
