// `kvasir chat`: a conversation in the terminal.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest_name.h"
#include "base/ordered_json.h"
#include "chat/reasoning.h"
#include "cli/batch_input.h"
#include "cli/command.h"
#include "cli/conversation_store.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/line_editor.h"
#include "cli/options.h"
#include "cli/output.h"
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
  std::string reasoning = "auto";
  bool json = false;
};

// Remarks about the conversation; with --json, standard output is for answers only.
template <typename... Args>
void note(const ChatFlags& flags, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...) + "\n";
  std::fputs(text.c_str(), flags.json ? stderr : stdout);
}

// Writes an answer as it comes: what is thought dimmed (or between remarks, where there are no colours), what
// is said as it is.
class AnswerPrinter {
 public:
  AnswerPrinter(bool show_reasoning, bool colours, bool terminal)
      : show_reasoning_(show_reasoning), colours_(colours), terminal_(terminal) {}

  void print(const chat::OutputPiece& piece) {
    if (piece.reasoning && !show_reasoning_) return;
    std::string_view text = piece.text;
    // Models put blank lines around their markers.
    if (piece.reasoning != reasoning_ || fresh_) {
      const size_t begin = text.find_first_not_of('\n');
      if (begin == std::string_view::npos) return;
      text.remove_prefix(begin);
      enter(piece.reasoning);
    }
    std::string shown(text);
    // Escape sequences of a model are not ours to run.
    if (terminal_)
      for (char& c : shown)
        if (c == '\033' || c == '\b') c = '?';
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }
  void end() {
    if (reasoning_ && colours_) std::fputs("\033[0m", stdout);
    reasoning_ = false;
  }

 private:
  void enter(bool reasoning) {
    if (reasoning_ && !reasoning) std::fputs(colours_ ? "\033[0m\n\n" : "\n(answer)\n", stdout);
    if (!reasoning_ && reasoning) {
      if (!fresh_) std::fputs("\n", stdout);
      std::fputs(colours_ ? "\033[2m" : "(thinking)\n", stdout);
    }
    reasoning_ = reasoning;
    fresh_ = false;
  }
  bool show_reasoning_, colours_, terminal_;
  bool reasoning_ = false, fresh_ = true;
};

// Without the newlines around it.
std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of('\n'), end = text.find_last_not_of('\n');
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
}

// Without what is typed around a word and cannot be seen.
std::string without_blanks(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
}

constexpr char kHelp[] =
    "/help            this list\n"
    "/reset           forget the conversation (the system message stays)\n"
    "/system [TEXT]   show, or set, the system message (and reset)\n"
    "/set [NAME=VALUE] show, or change, a setting: temperature, top_k, top_p, min_p,\n"
    "                 repetition_penalty, max_tokens, seed, or a variable of the chat template\n"
    "/temp X          /set temperature=X\n"
    "/retry           answer the last message again\n"
    "/undo            forget the last message and its answer\n"
    "/save NAME       keep the conversation on disk, with all that the model holds of it\n"
    "/load NAME       go on with a kept conversation\n"
    "/stats           what the cache of keys and values holds\n"
    "/quit            leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next one; \"\"\" begins and ends a\n"
    "block. A message that begins with / is written with a space before it.\n";

class Conversation {
 public:
  Conversation(engine::TextModel& model, std::filesystem::path checkpoint, const ChatFlags& flags)
      : model_(model),
        checkpoint_(std::move(checkpoint)),
        flags_(flags),
        sampling_(flags.sampling.options(0.7)),
        variables_(engine::parse_variables(flags.set)),
        system_(flags.system) {
    note_unread_variables(model.text(), variables_, false);
    max_tokens_ = flags.max_tokens;
    if (model.text().has_template())
      format_ = chat::detect_reasoning_format(model.text().templates->select(false));
    // Markers that the tokenizer has as special tokens: their text is wanted.
    for (const std::string_view marker : chat::reasoning_markers(format_))
      for (const int32_t id : model.tokenizer().encode(marker, {.add_special = false, .parse_special = true}))
        if (model.tokenizer().is_special(id)) markers_.push_back(id);
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
    const std::string name = without_blanks(rest);  // of a conversation
    if (verb == "/quit" || verb == "/exit" || verb == "/bye") return false;
    if (verb == "/help" || verb == "/?") {
      note(flags_, "{}", trimmed(kHelp));
    } else if (verb == "/reset") {
      reset();
      note(flags_, "(conversation forgotten)");
    } else if (verb == "/system") {
      if (rest.empty()) {
        note(flags_, "{}", system_.empty() ? "(no system message)" : system_);
      } else {
        system_ = rest;
        reset();
        note(flags_, "(system message set, conversation forgotten)");
      }
    } else if (verb == "/save" || verb == "/load") {
      if (name.empty())
        throw_error(ErrorCode::invalid_input, "expected {} NAME", verb);
      else if (verb == "/save")
        save(name);
      else
        load(name);
    } else if (verb == "/stats") {
      stats();
    } else if (verb == "/retry") {
      retry();
    } else if (verb == "/undo") {
      note(flags_, "{}", undo() ? "(the last message is forgotten)" : "(nothing to forget)");
    } else if (verb == "/set") {
      set(rest);
    } else if (verb == "/temp") {
      set(rest.empty() ? rest : "temperature=" + rest);
    } else {
      throw_error(ErrorCode::invalid_input, "unknown command {}; /help lists them", printable(verb));
    }
    return true;
  }

  // The messages travel in the entry's metadata; pages and tokens are the sequence's own.
  void save(const std::string& name) {
    if (context_.tokens.empty()) {
      note(flags_, "(nothing to save yet)");
      return;
    }
    store(true)->save(name, "", context_.tokens, context_.sequence,
                      conversation_metadata(messages_, system_));
    note(flags_, "(saved as {}, {} tokens)", printable(name), context_.tokens.size());
  }

  void load(const std::string& name) {
    Json metadata;
    const auto accept = [&](const kv::KvkHeader& header) {
      metadata = parse_ordered_json(header.metadata, "conversation " + name, ErrorCode::corrupt_file);
      if (!metadata.is_object() || !metadata.contains("messages") || !are_messages(metadata["messages"]) ||
          !metadata.value("system", Json("")).is_string())
        throw_error(ErrorCode::corrupt_file, "conversation {}: its messages cannot be read", printable(name));
      if (header.origin && metadata["messages"].empty())
        throw_error(
            ErrorCode::invalid_input,
            "conversation {} was imported without messages, so there is nothing that a template could go on "
            "with: import it with --messages, or use `kvasir generate --raw --continue`",
            printable(name));
      if (const int64_t limit = model_.engine().context_limit(); header.offset() > limit)
        throw_error(ErrorCode::invalid_input,
                    "conversation {} has {} tokens and the context holds {}: start with a larger --context",
                    printable(name), header.offset(), limit);
      context_ = {};  // its pages may be needed
    };
    kv::DiskStore::Conversation loaded;
    try {
      loaded =
          store(false)->load(name, "", model_.engine().cache(), &model_.engine().executor().team(), accept);
    } catch (...) {
      // The messages stay; what is no longer held of them is computed again.
      if (context_.tokens.empty()) context_ = model_.engine().new_context();
      throw;
    }
    messages_ = metadata["messages"];
    system_ = metadata.value("system", "");
    context_ = engine::Context{std::move(loaded.sequence), std::move(loaded.tokens)};
    note(flags_, "({} messages, {} tokens)", messages_.size(), context_.tokens.size());
  }

  void ask(const std::string& text) {
    check_utf8(text, "the message");
    messages_.push_back({{"role", "user"}, {"content", text}});
    try {
      answer();
    } catch (const Error&) {
      if (messages_.back()["role"] == "user") messages_.erase(messages_.size() - 1);
      throw;
    }
  }

 private:
  // Whether there was a message of the user's: it and all that follows it are dropped. What the model still
  // holds of them is cut when the next prompt comes.
  bool undo() {
    for (size_t i = messages_.size(); i-- > 0;)
      if (messages_[i]["role"] == "user") {
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i), messages_.end());
        return true;
      }
    return false;
  }

  void retry() {
    if (messages_.empty() || messages_.back()["role"] == "system") {
      note(flags_, "(nothing to answer yet)");
      return;
    }
    const Json last = messages_.back();
    if (last["role"] == "assistant") messages_.erase(messages_.size() - 1);
    try {
      answer();
    } catch (const Error&) {
      if (last["role"] == "assistant" && messages_.back()["role"] == "user") messages_.push_back(last);
      throw;
    }
  }

  // Answers the conversation as it stands; its last message is the user's.
  void answer() {
    std::string prompt;
    engine::TextRequest request;
    request.prompt = fitting_prompt(prompt);
    request.sampling = sampling_;
    if (!flags_.sampling.seed && !seed_set_) request.sampling.seed = turn_seed_++;
    request.max_tokens = max_tokens_;
    request.stop = flags_.stop;
    request.shown_special = markers_;
    request.context = &context_;
    request.stable_tokens = static_cast<int64_t>(stable_prefix(request.prompt));
    Progress reading("reading");
    request.on_progress = [&](int64_t done, int64_t total) {
      reading.update(static_cast<double>(done), static_cast<double>(total));
      if (done == total) reading.done();
    };
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    AnswerPrinter printer(flags_.reasoning == "show" || (flags_.reasoning == "auto" && terminal),
                          styled(STDOUT_FILENO), terminal);
    chat::ReasoningSplitter splitter(format_, prompt);
    std::string thought, said;
    auto take = [&](const std::vector<chat::OutputPiece>& pieces) {
      for (const chat::OutputPiece& piece : pieces) {
        (piece.reasoning ? thought : said) += piece.text;
        if (!flags_.json) printer.print(piece);
      }
    };
    request.on_text = [&](std::string_view text) { take(splitter.push(text)); };
    std::vector<engine::TextRequest> requests;
    requests.push_back(std::move(request));
    const engine::TextOutcome result = std::move(engine::generate_text(model_, std::move(requests), [] {
                                                   return interrupted() || output_failed();
                                                 }).front());
    reading.done();
    take(splitter.finish());
    printer.end();
    thought = trimmed(thought);
    // The newlines between a thought and what is said are the markers'.
    if (format_ != chat::ReasoningFormat::none)
      said.erase(0, std::min(said.find_first_not_of('\n'), said.size()));
    // Whether a later prompt shows what was thought is the template's own decision.
    Json message = {{"role", "assistant"}, {"content", said}};
    if (!thought.empty())
      message[format_ == chat::ReasoningFormat::harmony ? "thinking" : "reasoning_content"] = thought;
    messages_.push_back(std::move(message));
    report(result, said, thought);
    if (flags_.json || isatty(STDIN_FILENO) == 0) return;  // an interrupt ends a script's conversation
    clear_interrupt();
  }

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
      if (const auto d = model_.engine().prefixes()->disk_stats())
        prefixes["disk"] = {{"entries", d->entries},
                            {"bytes", d->bytes},
                            {"cap_bytes", d->cap_bytes},
                            {"restores", d->restores},
                            {"restore_ms_last", d->restore_ms_last},
                            {"stores", d->stores},
                            {"failed_stores", d->failed_stores},
                            {"evictions", d->evictions},
                            {"dropped", d->dropped},
                            {"longest_durable_prefix_tokens", d->longest_prefix}};
      if (const auto w = model_.engine().prefixes()->write_stats())
        prefixes["disk"].update({{"spills", w->spills},
                                 {"demotions", w->demotions},
                                 {"pending_snapshots", w->pending_snapshots},
                                 {"pending_spills", w->pending_spills},
                                 {"pending_spill_bytes", w->pending_spill_bytes},
                                 {"dropped_spills", w->dropped_spills},
                                 {"failed_spills", w->failed_spills}});
    }
    if (flags_.json) {
      print_json({{"context_used", context_.tokens.size()}, {"pools", pools}, {"prefixes", prefixes}});
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
    if (prefixes.contains("disk")) {
      const Json& disk = prefixes["disk"];
      std::printf(
          "on disk: %d prompts, %.1f MB; %d restored, %d written, %d to be written, %d given up, %d failed\n",
          disk["entries"].get<int>(), disk["bytes"].get<double>() / 1e6, disk["restores"].get<int>(),
          disk["stores"].get<int>(), disk["pending_snapshots"].get<int>() + disk["pending_spills"].get<int>(),
          disk["dropped_spills"].get<int>(), disk["failed_spills"].get<int>());
    }
  }

  void report(const engine::TextOutcome& result, const std::string& said, const std::string& thought) const {
    const engine::Timings& t = result.outcome.timings;
    const double rate =
        t.decode_seconds > 0 ? static_cast<double>(t.completion_tokens - 1) / t.decode_seconds : 0;
    const auto used = static_cast<long long>(context_.tokens.size());
    const auto limit = static_cast<long long>(model_.engine().context_limit());
    if (flags_.json) {
      Json json = {{"text", said},
                   {"finish_reason", engine::name(result.outcome.reason)},
                   {"prompt_tokens", t.prompt_tokens},
                   {"reused_tokens", t.reused_tokens},
                   {"cached_tokens", t.reused_tokens},
                   {"completion_tokens", t.completion_tokens},
                   {"prefill_seconds", t.prefill_seconds},
                   {"decode_tokens_per_s", rate},
                   {"context_used", used}};
      if (!thought.empty()) json["reasoning"] = thought;
      print_json(json);
      std::fflush(stdout);
      return;
    }
    std::printf("\n");
    // A script gets the answers and nothing else on standard output.
    std::FILE* out = isatty(STDOUT_FILENO) != 0 ? stdout : stderr;
    const bool dim = styled(fileno(out));
    const char* cut = "";
    if (result.outcome.reason == engine::FinishReason::cancelled) cut = "stopped; ";
    if (result.outcome.reason == engine::FinishReason::length)
      cut = t.completion_tokens == max_tokens_ ? "cut at max_tokens; " : "cut: the context is full; ";
    std::fprintf(out,
                 "%s[%s%lld new prompt tokens in %.2f s, %lld tokens at %.1f/s, context %lld of %lld]%s\n",
                 dim ? "\033[2m" : "", cut, static_cast<long long>(t.prompt_tokens - t.reused_tokens),
                 t.prefill_seconds, static_cast<long long>(t.completion_tokens), rate, used, limit,
                 dim ? "\033[0m" : "");
    std::fflush(stdout);
  }

  std::vector<int32_t> encode(const Json& messages, std::string& prompt) const {
    prompt = model_.text().render(messages, nullptr, variables_);
    return engine::encode_prompt(model_.text(), prompt, true);
  }

  // The whole conversation as tokens. A full context is refused, or with the policy `roll` the oldest turns
  // are dropped (and said so) until an answer has room: max_tokens, at most a quarter of the context.
  // `prompt`: the same as text.
  std::vector<int32_t> fitting_prompt(std::string& prompt) {
    const int64_t limit = model_.engine().context_limit();
    const bool roll = flags_.context_policy == "roll";
    std::vector<int32_t> ids = encode(messages_, prompt);
    const auto length = [&] { return static_cast<int64_t>(ids.size()); };
    const int64_t quarter = std::max<int64_t>(limit / 4, 1);
    const int64_t answer = !roll ? 1 : (max_tokens_ < 0 ? quarter : std::min(max_tokens_, quarter));
    if (length() + answer <= limit) return ids;
    if (!roll)
      throw_error(ErrorCode::invalid_input,
                  "the conversation has {} tokens and the context holds {}: /reset, or start with a larger "
                  "--context, or --context-policy roll",
                  length(), limit);
    Json kept = messages_;  // nothing is forgotten for a message that is refused
    while (length() > limit - quarter) {
      size_t first = 0;
      while (first < kept.size() && kept[first]["role"] == "system") ++first;
      if (first + 1 >= kept.size()) break;
      // A turn is a user's message and all that answers it.
      do {
        kept.erase(first);
      } while (first + 1 < kept.size() && kept[first]["role"] != "user");
      ids = encode(kept, prompt);
    }
    if (length() >= limit)
      throw_error(ErrorCode::invalid_input, "the last message alone has {} tokens and the context holds {}",
                  length(), limit);
    if (const size_t dropped = messages_.size() - kept.size(); dropped > 0)
      note(flags_, "(context full: the oldest {} messages were dropped)", dropped);
    messages_ = std::move(kept);
    return ids;
  }

  void set(const std::string& text) {
    if (text.empty()) {
      note(flags_, "temperature={} top_k={} top_p={} min_p={} repetition_penalty={} max_tokens={} seed={}",
           sampling_.temperature, sampling_.top_k, sampling_.top_p, sampling_.min_p,
           sampling_.repetition_penalty, max_tokens_, sampling_.seed);
      for (const auto& [key, value] : variables_.items()) note(flags_, "{}={}", key, json_text(value));
      return;
    }
    const size_t equals = text.find('=');
    if (equals == std::string::npos) throw_error(ErrorCode::invalid_input, "expected /set NAME=VALUE");
    const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
    engine::SamplingOptions changed = sampling_;
    int64_t max_tokens = max_tokens_;
    const auto number = [&](float& target, double most = std::numeric_limits<float>::max()) {
      return [&, most] { target = static_cast<float>(parse_number(key, value, 0, most)); };
    };
    const std::map<std::string, std::function<void()>> settings = {
        {"temperature", number(changed.temperature)},
        {"temp", number(changed.temperature)},
        {"top_k", [&] { changed.top_k = static_cast<int>(parse_whole(key, value, 0, INT32_MAX)); }},
        {"top_p", number(changed.top_p, 1)},
        {"min_p", number(changed.min_p, 1)},
        {"repetition_penalty", number(changed.repetition_penalty)},
        {"max_tokens", [&] { max_tokens = parse_whole(key, value, 1, INT64_MAX); }},
        {"seed", [&] { changed.seed = parse_unsigned(key, value); }},
    };
    const auto setting = settings.find(key);
    if (setting == settings.end()) {
      set_variable(key, text, settings);
      return;
    }
    try {
      setting->second();
    } catch (const CLI::ValidationError& error) {
      throw Error(ErrorCode::invalid_input, error.what());
    }
    changed.validate(model_.engine().model().info().vocab);
    sampling_ = changed;
    max_tokens_ = max_tokens;
    seed_set_ = seed_set_ || key == "seed";
  }

  // A name that the template does not read, and that is near a setting's, is a misspelt setting.
  template <typename Settings>
  void set_variable(const std::string& key, const std::string& text, const Settings& settings) {
    const Json variable = engine::parse_variables({text});
    std::vector<std::string> names;
    for (const auto& [name, action] : settings) names.push_back(name);
    const std::string near = nearest_name(key, names);
    const bool read = model_.text().chat_template(false).variables().contains(key);
    if (!near.empty() && !read)
      throw_error(ErrorCode::invalid_input, "unknown setting {}{}", printable(key), did_you_mean(near));
    if (!read && is_batch_key(key))
      throw_error(ErrorCode::invalid_input, "{} cannot be changed in a conversation: start with its flag",
                  key);
    note_unread_variables(model_.text(), variable, false);
    variables_.update(variable);
    note(flags_, "(template variable {} set)", printable(key));
  }

  std::unique_ptr<kv::DiskStore> store(bool create) const {
    return open_store(flags_.prefixes.store_folder(), model_.engine(), checkpoint_, create);
  }

  engine::TextModel& model_;
  std::filesystem::path checkpoint_;
  const ChatFlags& flags_;
  engine::SamplingOptions sampling_;
  uint64_t turn_seed_ = sampling_.seed;
  bool seed_set_ = false;
  int64_t max_tokens_;
  Json variables_;
  std::string system_;
  chat::ReasoningFormat format_ = chat::ReasoningFormat::none;
  std::vector<int32_t> markers_;
  Json messages_;
  engine::Context context_;
};

int chat(const ChatFlags& flags) {
  engine::EngineOptions options = flags.load.options();
  options.checkpoints = true;
  flags.prefixes.apply(options, true);
  Progress loading("loading");
  options.load.progress = loading.callback();
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::TextSide text = open_text(path);
  if (!text.has_template())
    throw_error(
        ErrorCode::unsupported,
        "{} has no chat template, so it was not made for conversations: use `kvasir generate {} --raw`",
        path.filename().string(), flags.load.model);
  options.load.accept = [&](const models::ModelInfo& info) {
    flags.sampling.options(0.7).validate(info.vocab);
  };
  // Memory for the whole context is planned and refused now, not in the middle of a conversation.
  const std::unique_ptr<engine::TextModel> model = engine::TextModel::open(path, text, options);
  loading.done();
  flags.prefixes.note_unused(model->engine());
  const models::ModelInfo& info = model->engine().model().info();
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (terminal)
    std::printf("%s (%s, %s activations, context %lld). /help lists commands, Ctrl-D leaves.\n",
                path.filename().c_str(), info.model_type.c_str(),
                std::string(models::name(info.activations)).c_str(),
                static_cast<long long>(model->engine().context_limit()));
  Conversation conversation(*model, path, flags);
  if (!flags.resume.empty()) conversation.load(flags.resume);
  LineEditor editor(flags.no_history ? std::filesystem::path() : state_folder() / "history");
  while (!output_failed()) {
    if (terminated() || (!terminal && interrupted())) break;
    try {
      const std::optional<std::string> line = editor.read("> ");
      if (!line) break;
      if (line->find_first_not_of(" \t\n") == std::string::npos) continue;
      if (line->front() == '/') {
        if (!conversation.command(*line)) break;
      } else {
        conversation.ask(*line);
      }
    } catch (const Error& error) {
      // A bad setting, a full context or an unknown name ends nothing, nor does a full disk or a damaged
      // file while somebody is there to go on; our own faults do.
      const bool usage = error.code() == ErrorCode::invalid_input;
      const bool file = terminal && (error.code() == ErrorCode::resource_exhausted ||
                                     error.code() == ErrorCode::corrupt_file);
      if (!usage && !file && error.code() != ErrorCode::not_found) throw;
      std::fprintf(stderr, "kvasir: %s\n", error.what());
      if (!terminal) return usage ? kExitUsage : kExitFailure;
    }
  }
  if (terminal) std::printf("\n");
  if (terminated() || (!terminal && interrupted())) throw Error(ErrorCode::cancelled, "interrupted");
  return kExitDone;
}

}  // namespace

void add_chat(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<ChatFlags>();
  auto system_path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  add_text(*command, "--system,--system-prompt", flags->system, "TEXT", "System message");
  CLI::Option* system_file =
      add_text(*command, "--system-file", *system_path, kFileValue, "A file that holds it")
          ->excludes(command->get_option("--system"));
  CLI::Option* set = add_list(*command, "--set", flags->set, "K=V", "A variable of the chat template");
  add_whole(*command, "--max-tokens,-n", flags->max_tokens,
            "Most tokens of an answer (default: until it ends)", 1);
  add_stop(*command, flags->stop, "Text that ends an answer");
  CLI::Option* policy = add_choice(*command, "--context-policy", flags->context_policy, {"error", "roll"},
                                   "When the context is full; roll: drop the oldest turns (default error)");
  CLI::Option* reasoning = add_choice(*command, "--reasoning", flags->reasoning, {"auto", "show", "hide"},
                                      "What the model thinks; auto: shown on a terminal, dimmed");
  add_text(*command, "--continue", flags->resume, "NAME", "Go on with a conversation kept by /save")
      ->each([](const std::string& name) {
        if (name.empty()) refuse_value(name, "a name");
      })
      ->excludes(command->get_option("--system"))
      ->excludes(system_file);
  CLI::Option* no_history = command->add_flag("--no-history", flags->no_history, "Keep no input history");
  add_json(*command, flags->json, "One JSON object a line for each answer");
  minor({policy, reasoning, set, system_file, no_history});
  flags->load.add_to(*command, false);
  flags->sampling.add_to(*command);
  flags->prefixes.add_to(*command);
  flags->prefixes.add_disk_to(*command);
  command->footer(
      "Examples:\n"
      "  kvasir chat smollm2 --system 'You are a pirate.'\n"
      "  printf 'Hi!\\nWho are you?\\n' | kvasir chat smollm2 --temperature 0 --json\n"
      "/help in the chat lists its commands. A line is a message; one that ends in \\\n"
      "goes on in the next, and \"\"\" begins and ends a block.");
  command->callback([flags, system_file, system_path, &invocation] {
    const bool from_file = system_file->count() > 0;
    invocation.work = [flags, from_file, system_path] {
      install_interrupt_handler();
      if (from_file) flags->system = trimmed(read_input(*system_path, size_t{16} << 20));
      return chat(*flags);
    };
  });
}

}  // namespace kvasir::cli
