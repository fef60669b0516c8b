// `kvasir chat`: a conversation in the terminal.
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/conversation_store.h"
#include "cli/flags.h"
#include "cli/line_editor.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ChatFlags {
  LoadFlags load;
  SamplingFlags sampling;
  PrefixFlags prefixes;
  std::string system;
  std::vector<std::string> set;
  int64_t max_tokens = -1;
  std::vector<std::string> stop;
  std::string context_policy = "error";
  bool no_history = false;
  std::string resume;
  std::string store;
  bool json = false;
};

constexpr char kHelp[] =
    "/help            this list\n"
    "/reset           forget the conversation (the system message stays)\n"
    "/system [TEXT]   show, or set, the system message (and reset)\n"
    "/set [NAME=VALUE] show, or change, a setting: temperature, top_k, top_p, min_p, seed, max_tokens,\n"
    "                 or a variable of the chat template\n"
    "/save NAME       keep the conversation on disk, with all that the model holds of it\n"
    "/load NAME       go on with a kept conversation\n"
    "/stats           what the cache of keys and values holds\n"
    "/quit            leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next one; \"\"\" begins and ends a "
    "block.\n";

class Conversation {
 public:
  Conversation(engine::TextModel& model, const ChatFlags& flags)
      : model_(model),
        flags_(flags),
        sampling_(flags.sampling.options(0.7)),
        variables_(engine::parse_variables(flags.set)),
        system_(flags.system) {
    sampling_.validate(model.engine().model().info().vocab);
    max_tokens_ = flags.max_tokens;
    reset();
  }

  void reset() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
    context_ = model_.engine().new_context();
  }

  // Handles a line that begins with '/'. False: the conversation is over.
  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string verb = line.substr(0, space);
    const std::string rest = space == std::string::npos ? std::string() : line.substr(space + 1);
    if (verb == "/quit" || verb == "/exit" || verb == "/bye") return false;
    if (verb == "/help" || verb == "/?") {
      std::fputs(kHelp, stdout);
    } else if (verb == "/reset") {
      reset();
      std::puts("(conversation forgotten)");
    } else if (verb == "/system") {
      if (rest.empty()) {
        std::printf("%s\n", system_.empty() ? "(no system message)" : system_.c_str());
      } else {
        system_ = rest;
        reset();
        std::puts("(system message set, conversation forgotten)");
      }
    } else if (verb == "/save" || verb == "/load") {
      if (rest.empty())
        std::printf("expected %s NAME\n", verb.c_str());
      else if (verb == "/save")
        save(rest);
      else
        load(rest);
    } else if (verb == "/stats") {
      stats();
    } else if (verb == "/set") {
      set(rest);
    } else {
      std::printf("unknown command %s; /help lists them\n", printable(verb).c_str());
    }
    return true;
  }

  // The messages travel in the entry's metadata; pages and tokens are the sequence's own.
  void save(const std::string& name) {
    if (context_.tokens.empty()) {
      std::puts("(nothing to save yet)");
      return;
    }
    store().save(name, "", context_.tokens, context_.sequence,
                 Json({{"messages", messages_}, {"system", system_}}).dump());
    std::printf("(saved as %s, %zu tokens)\n", printable(name).c_str(), context_.tokens.size());
  }

  void load(const std::string& name) {
    context_ = {};  // its pages may be needed
    kv::DiskStore::Conversation loaded;
    try {
      loaded = store().load(name, model_.engine().cache(), &model_.engine().executor().team());
    } catch (...) {
      reset();
      throw;
    }
    const Json metadata = Json::parse(loaded.metadata, nullptr, false);
    if (!metadata.is_object() || !metadata.contains("messages") || !metadata["messages"].is_array())
      throw_error(ErrorCode::corrupt_file, "conversation {}: its messages cannot be read", printable(name));
    messages_ = metadata["messages"];
    system_ = metadata.value("system", "");
    context_ = engine::Context{std::move(loaded.sequence), std::move(loaded.tokens)};
    if (!flags_.json) std::printf("(%zu messages, %zu tokens)\n", messages_.size(), context_.tokens.size());
  }

  void ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    std::vector<int32_t> ids;
    try {
      ids = fitting_prompt();
    } catch (const Error&) {
      messages_.erase(messages_.size() - 1);
      throw;
    }
    engine::TextRequest request;
    request.prompt = ids;
    request.sampling = sampling_;
    if (!flags_.sampling.has_seed && !seed_set_) request.sampling.seed = turn_seed_++;
    request.max_tokens = max_tokens_;
    request.stop = flags_.stop;
    request.context = &context_;
    request.stable_tokens = static_cast<int64_t>(stable_prefix(ids));
    Progress reading("reading");
    request.on_progress = [&](int64_t done, int64_t total) {
      reading.update(static_cast<double>(done), static_cast<double>(total));
      if (done == total) reading.done();
    };
    if (!flags_.json)
      request.on_text = [](std::string_view piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      };
    std::vector<engine::TextRequest> requests;
    requests.push_back(std::move(request));
    const engine::TextOutcome result =
        std::move(engine::generate_text(model_, std::move(requests), [] { return interrupted(); }).front());
    reading.done();
    const bool stopped = result.outcome.reason == engine::FinishReason::cancelled;
    messages_.push_back({{"role", "assistant"}, {"content", result.text}});
    report(result, stopped);
    clear_interrupt();
  }

 private:
  // How much of this prompt the next turn's begins with: what a template writes to open the answer may be
  // gone by then.
  size_t stable_prefix(const std::vector<int32_t>& ids) const {
    if (model_.engine().prefixes() == nullptr) return 0;
    Json next = messages_;
    next.push_back({{"role", "assistant"}, {"content", "x"}});
    next.push_back({{"role", "user"}, {"content", "x"}});
    try {
      const std::string text = model_.text().render(next, nullptr, variables_);
      return engine::common_prefix(ids, engine::encode_prompt(model_.text(), text, true));
    } catch (const Error&) {
      return 0;  // a template that refuses this conversation costs speed only
    }
  }

  void stats() const {
    Json pools = Json::array();
    for (const kv::KvCache::PoolStats& pool : model_.engine().cache().stats())
      pools.push_back({{"name", pool.name},
                       {"page_bytes", pool.page_bytes},
                       {"bytes_per_token", pool.bytes_per_token},
                       {"pages", pool.used},
                       {"pages_committed", pool.committed},
                       {"pages_most", pool.high_water},
                       {"pages_planned", pool.capacity}});
    Json prefixes;
    if (model_.engine().prefixes() != nullptr) {
      const kv::PrefixTree::Stats s = model_.engine().prefixes()->stats();
      prefixes = {{"entries", s.entries},    {"bytes", s.bytes},   {"cap_bytes", s.cap_bytes},
                  {"hits", s.hits},          {"misses", s.misses}, {"hit_tokens", s.hit_tokens},
                  {"evictions", s.evictions}};
    }
    if (flags_.json) {
      std::printf("%s\n",
                  Json({{"context_used", context_.tokens.size()}, {"pools", pools}, {"prefixes", prefixes}})
                      .dump()
                      .c_str());
      std::fflush(stdout);
      return;
    }
    std::printf("context: %zu of %lld tokens\n", context_.tokens.size(),
                static_cast<long long>(model_.engine().context_limit()));
    for (const Json& pool : pools)
      std::printf("%s: %d of %d pages of %.1f kB, %d at most\n", pool["name"].get<std::string>().c_str(),
                  pool["pages"].get<int>(), pool["pages_planned"].get<int>(),
                  pool["page_bytes"].get<double>() / 1e3, pool["pages_most"].get<int>());
    if (!prefixes.is_null())
      std::printf("earlier prompts: %d points, %.1f MB; %d hits (%d tokens), %d misses, %d evicted\n",
                  prefixes["entries"].get<int>(), prefixes["bytes"].get<double>() / 1e6,
                  prefixes["hits"].get<int>(), prefixes["hit_tokens"].get<int>(),
                  prefixes["misses"].get<int>(), prefixes["evictions"].get<int>());
  }

  void report(const engine::TextOutcome& result, bool stopped) const {
    const engine::Timings& t = result.outcome.timings;
    const double rate =
        t.decode_seconds > 0 ? static_cast<double>(t.completion_tokens - 1) / t.decode_seconds : 0;
    const auto used = static_cast<long long>(context_.tokens.size());
    const auto limit = static_cast<long long>(model_.engine().context_limit());
    if (flags_.json) {
      std::printf("%s\n", Json({{"text", result.text},
                                {"finish_reason", engine::name(result.outcome.reason)},
                                {"prompt_tokens", t.prompt_tokens},
                                {"reused_tokens", t.reused_tokens},
                                {"cached_tokens", t.reused_tokens},
                                {"completion_tokens", t.completion_tokens},
                                {"prefill_seconds", t.prefill_seconds},
                                {"decode_tokens_per_s", rate},
                                {"context_used", used}})
                              .dump()
                              .c_str());
      std::fflush(stdout);
      return;
    }
    std::printf("\n");
    const bool dim = isatty(STDOUT_FILENO) != 0;
    std::printf("%s[%s%lld new prompt tokens in %.2f s, %lld tokens at %.1f/s, context %lld of %lld]%s\n",
                dim ? "\033[2m" : "",
                stopped ? "stopped; "
                        : (result.outcome.reason == engine::FinishReason::length ? "cut at the limit; " : ""),
                static_cast<long long>(t.prompt_tokens - t.reused_tokens), t.prefill_seconds,
                static_cast<long long>(t.completion_tokens), rate, used, limit, dim ? "\033[0m" : "");
    std::fflush(stdout);
  }

  std::vector<int32_t> encode() const {
    return engine::encode_prompt(model_.text(), model_.text().render(messages_, nullptr, variables_), true);
  }

  // The whole conversation as tokens. A full context is refused, or with the policy `roll` the oldest turns
  // are dropped (and said so) until at least a quarter of it is free again for the answer.
  std::vector<int32_t> fitting_prompt() {
    const int64_t limit = model_.engine().context_limit();
    std::vector<int32_t> ids = encode();
    const auto length = [&] { return static_cast<int64_t>(ids.size()); };
    if (length() < limit) return ids;
    if (flags_.context_policy != "roll")
      throw_error(ErrorCode::invalid_input,
                  "the conversation has {} tokens and the context holds {}: /reset, or start with a larger "
                  "--context, or --context-policy roll",
                  length(), limit);
    int dropped = 0;
    while (length() > limit * 3 / 4) {
      size_t first = 0;
      while (first < messages_.size() && messages_[first]["role"] == "system") ++first;
      if (first + 1 >= messages_.size())
        throw_error(ErrorCode::invalid_input, "the last message alone has {} tokens and the context holds {}",
                    length(), limit);
      // A turn is a user's message and all that answers it.
      do {
        messages_.erase(first);
        ++dropped;
      } while (first + 1 < messages_.size() && messages_[first]["role"] != "user");
      ids = encode();
    }
    std::fprintf(flags_.json ? stderr : stdout, "(context full: the oldest %d messages were dropped)\n",
                 dropped);
    return ids;
  }

  void set(const std::string& text) {
    if (text.empty()) {
      std::printf("temperature=%g top_k=%d top_p=%g min_p=%g max_tokens=%lld seed=%llu\n",
                  static_cast<double>(sampling_.temperature), sampling_.top_k,
                  static_cast<double>(sampling_.top_p), static_cast<double>(sampling_.min_p),
                  static_cast<long long>(max_tokens_), static_cast<unsigned long long>(sampling_.seed));
      for (const auto& [key, value] : variables_.items())
        std::printf("%s=%s\n", key.c_str(), value.dump().c_str());
      return;
    }
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      std::puts("expected /set NAME=VALUE");
      return;
    }
    const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
    engine::SamplingOptions changed = sampling_;
    bool known = true, ok = true;
    auto number = [&](auto& target) {
      auto parsed = target;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
      ok = error == std::errc() && end == value.data() + value.size();
      if (ok) target = parsed;
    };
    int64_t max_tokens = max_tokens_;
    if (key == "temperature" || key == "temp")
      number(changed.temperature);
    else if (key == "top_k")
      number(changed.top_k);
    else if (key == "top_p")
      number(changed.top_p);
    else if (key == "min_p")
      number(changed.min_p);
    else if (key == "repetition_penalty")
      number(changed.repetition_penalty);
    else if (key == "max_tokens")
      number(max_tokens);
    else if (key == "seed")
      number(changed.seed);
    else
      known = false;
    if (!known) {
      variables_.update(engine::parse_variables({text}));
      std::printf("(template variable %s set)\n", printable(key).c_str());
      return;
    }
    if (!ok) {
      std::printf("%s: '%s' is no number for it\n", key.c_str(), printable(value).c_str());
      return;
    }
    changed.validate(model_.engine().model().info().vocab);
    sampling_ = changed;
    max_tokens_ = max_tokens;
    seed_set_ = seed_set_ || key == "seed";
  }

  kv::DiskStore& store() {
    if (store_ == nullptr)
      store_ = open_store(flags_.store.empty() ? default_store_folder() : std::filesystem::path(flags_.store),
                          model_);
    return *store_;
  }

  engine::TextModel& model_;
  const ChatFlags& flags_;
  std::unique_ptr<kv::DiskStore> store_;  // opened when first used
  engine::SamplingOptions sampling_;
  uint64_t turn_seed_ = sampling_.seed;
  bool seed_set_ = false;
  int64_t max_tokens_;
  Json variables_;
  std::string system_;
  Json messages_;
  engine::Context context_;
};

int chat(const ChatFlags& flags) {
  if (flags.context_policy != "error" && flags.context_policy != "roll")
    throw_error(ErrorCode::invalid_input, "--context-policy: '{}' is not one of error, roll",
                printable(flags.context_policy));
  engine::EngineOptions options = flags.load.options();
  options.checkpoints = true;
  flags.prefixes.apply(options, true);
  Progress loading("loading");
  options.load.progress = [&](size_t done, size_t total) {
    loading.update(static_cast<double>(done), static_cast<double>(total));
    return !interrupted();
  };
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::TextSide text = engine::TextSide::open(path);
  if (!text.has_template())
    throw_error(
        ErrorCode::unsupported,
        "{} has no chat template, so it was not made for conversations: use `kvasir generate {} --raw`",
        path.filename().string(), flags.load.model);
  // Memory for the whole context is planned and refused now, not in the middle of a conversation.
  const std::unique_ptr<engine::TextModel> model = engine::TextModel::open(path, text, options);
  loading.done();
  const models::ModelInfo& info = model->engine().model().info();
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (terminal)
    std::printf("%s (%s, %s activations, context %lld). /help lists commands, Ctrl-D leaves.\n",
                path.filename().c_str(), info.model_type.c_str(),
                std::string(models::name(info.activations)).c_str(),
                static_cast<long long>(model->engine().context_limit()));
  Conversation conversation(*model, flags);
  if (!flags.resume.empty()) conversation.load(flags.resume);
  LineEditor editor(flags.no_history ? std::filesystem::path() : default_history_file());
  while (true) {
    const std::optional<std::string> line = editor.read("> ");
    if (!line) break;
    if (line->find_first_not_of(" \t\n") == std::string::npos) continue;
    try {
      if (line->front() == '/') {
        if (!conversation.command(*line)) break;
      } else {
        conversation.ask(*line);
      }
    } catch (const Error& error) {
      // A bad setting, a full context or an unknown name ends nothing; our own faults do.
      if (error.code() != ErrorCode::invalid_input && error.code() != ErrorCode::not_found) throw;
      std::fprintf(stderr, "kvasir: %s\n", error.what());
      if (!terminal) return kExitUsage;
    }
  }
  if (terminal) std::printf("\n");
  return kExitDone;
}

}  // namespace

void add_chat(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  flags->load.add_to(*command, false);
  command->add_option("--system", flags->system, "System message");
  command->add_option("--set", flags->set, "K=V: a variable of the chat template, repeatable");
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens of an answer (default: until it ends)");
  command->add_option("--stop", flags->stop, "Text that ends an answer, repeatable")->allow_extra_args(false);
  command->add_option("--context-policy", flags->context_policy,
                      "When the context is full: error (default), or roll: drop the oldest turns");
  command->add_option("--continue", flags->resume, "Go on with a conversation kept by /save");
  command->add_option("--prompt-cache-dir", flags->store,
                      "Where conversations are kept (default: ~/.local/state/kvasir/kv)");
  command->add_flag("--no-history", flags->no_history, "Keep no input history");
  command->add_flag("--json", flags->json, "One JSON object an answer");
  flags->sampling.add_to(*command);
  flags->prefixes.add_to(*command);
  command->footer(
      "Examples:\n  kvasir chat smollm2 --system 'You are a pirate.'\n  printf 'Hi!\\nWho are you?\\n' | "
      "kvasir chat smollm2 --temperature 0");
  command->callback([flags, &invocation] { invocation.work = [flags] { return chat(*flags); }; });
}

}  // namespace kvasir::cli
