#include "engine/text_model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "engine/vocabulary_breakers.h"
#include "formats/checkpoint.h"
#include "tokenizer/gguf_adapter.h"

namespace kvasir::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSmallFile = size_t{16} << 20;
constexpr size_t kTokenizerFile = size_t{256} << 20;

std::string read_optional(const std::optional<std::filesystem::path>& path, size_t limit) {
  return path ? read_file(*path, limit) : std::string();
}

// The text of one of the checkpoint's own files.
Json parse_object(const std::string& text, const std::filesystem::path& path) {
  Json json = parse_ordered_json(text, path.string(), ErrorCode::corrupt_file);
  if (!json.is_object())
    throw_error(ErrorCode::corrupt_file, "{}: expected a JSON object, got {}", printable(path.string()),
                json.type_name());
  return json;
}

void add_special(chat::SpecialTokens& tokens, const tokenizer::Tokenizer& tokenizer, std::string name,
                 std::optional<int32_t> id) {
  if (id) tokens.emplace_back(std::move(name), std::string(tokenizer.piece(*id)));
}

// What makes the tokenizer; its errors, which know no file, name this one.
std::shared_ptr<const tokenizer::Tokenizer> made(const std::string& file,
                                                 const std::function<tokenizer::Tokenizer()>& make) {
  try {
    return std::make_shared<const tokenizer::Tokenizer>(make());
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.starts_with(file) || text.starts_with(printable(file))) throw;
    throw Error(error.code(), fmt::format("{}: {}", printable(file), text), error.details());
  }
}

TextSide from_gguf(const formats::GgufFile& file) {
  TextSide side;
  side.tokenizer = made(file.path(), [&] { return tokenizer::tokenizer_from_gguf(file); });
  auto templates = std::make_shared<chat::ChatTemplates>();
  for (const formats::GgufValue& pair : file.metadata())
    if (pair.key.starts_with("tokenizer.chat_template"))
      if (const std::optional<std::string_view> text = file.find_string(pair.key))
        templates->add_gguf_key(pair.key, std::string(*text));
  side.templates = std::move(templates);
  return side;
}

// What a folder without a model may still hold: a tokenizer of its own, with its companions; or the one file.
std::optional<formats::AuxiliaryFiles> tokenizer_alone(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && path.extension() == ".json") {
    formats::AuxiliaryFiles files;
    files.tokenizer_json = path;
    return files;
  }
  if (!fs::is_regular_file(path / "tokenizer.json", ignored) || fs::exists(path / "config.json", ignored))
    return std::nullopt;
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".gguf") return std::nullopt;
  return formats::find_auxiliary_files(path);
}

TextSide from_files(const formats::AuxiliaryFiles& files, const std::filesystem::path& folder,
                    std::string_view config_json, std::string_view generation_json) {
  if (!files.tokenizer_json)
    throw_error(ErrorCode::not_found, "{}: {}", printable(folder.string()), files.text_problem());
  TextSide side;
  const std::string tokenizer_json = read_file(*files.tokenizer_json, kTokenizerFile);
  const std::string config = read_optional(files.tokenizer_config, kSmallFile);
  const std::string specials = read_optional(files.special_tokens_map, kSmallFile);
  const std::string added = read_optional(files.added_tokens, kSmallFile);
  tokenizer::TokenizerFiles text;
  text.tokenizer_json = tokenizer_json;
  text.tokenizer_config_json = config;
  text.special_tokens_map_json = specials;
  text.added_tokens_json = added;
  text.generation_config_json = generation_json;
  text.config_json = config_json;
  text.name = files.tokenizer_json->string();
  side.tokenizer =
      made(files.tokenizer_json->string(), [&] { return tokenizer::Tokenizer::from_files(text); });
  auto templates = std::make_shared<chat::ChatTemplates>();
  if (files.tokenizer_config)
    *templates = chat::ChatTemplates::from_tokenizer_config(parse_object(config, *files.tokenizer_config));
  if (files.chat_template_json) {
    const std::filesystem::path& path = *files.chat_template_json;
    const chat::ChatTemplates processor =
        chat::ChatTemplates::from_processor_file(parse_object(read_file(path, kSmallFile), path));
    for (const auto& [name, source] : processor.sources()) templates->add(name, source);
  }
  if (files.chat_template_jinja) templates->add("default", read_file(*files.chat_template_jinja, kSmallFile));
  for (const auto& [name, path] : files.additional_templates)
    templates->add(name, read_file(path, kSmallFile));
  side.templates = std::move(templates);
  return side;
}

}  // namespace

TextSide TextSide::open(const std::filesystem::path& path) {
  const auto of_checkpoint = [&] {
    const formats::Checkpoint checkpoint = formats::Checkpoint::open(path);
    return checkpoint.gguf() != nullptr
               ? from_gguf(*checkpoint.gguf())
               : from_files(checkpoint.files(), checkpoint.path(), checkpoint.config_text(),
                            checkpoint.generation_config().is_null()
                                ? std::string()  // none, or one that is ignored with a warning
                                : read_file(*checkpoint.files().generation_config, kSmallFile));
  };
  const std::optional<formats::AuxiliaryFiles> alone = tokenizer_alone(path);
  TextSide side = alone ? from_files(*alone, path, {}, {}) : of_checkpoint();
  side.name = path.filename().string();
  side.warnings.assign(side.tokenizer->warnings().begin(), side.tokenizer->warnings().end());
  const tokenizer::Tokenizer& tokenizer = *side.tokenizer;
  add_special(side.special_tokens, tokenizer, "bos_token", tokenizer.bos_id());
  add_special(side.special_tokens, tokenizer, "eos_token", tokenizer.eos_id());
  add_special(side.special_tokens, tokenizer, "unk_token", tokenizer.unknown_id());
  add_special(side.special_tokens, tokenizer, "pad_token", tokenizer.pad_id());
  return side;
}

std::string TextSide::render(const Json& messages, const Json& tools, const Json& variables,
                             bool add_generation_prompt) const {
  chat::RenderRequest request;
  request.messages = messages;
  request.tools = tools;
  request.variables = variables;
  request.add_generation_prompt = add_generation_prompt;
  return chat_template(!tools.is_null()).render(request, special_tokens);
}

chat::ChatTemplate TextSide::chat_template(bool with_tools) const {
  if (!has_template()) throw_error(ErrorCode::unsupported, "{} has no chat template", name);
  return chat::ChatTemplate::parse(templates->select(with_tools), "chat template of " + name);
}

std::vector<int32_t> encode_prompt(const TextSide& text, const std::string& prompt, bool templated) {
  bool add_special = !templated;
  // A raw prompt that spells out its own BOS gets no second one.
  if (add_special && text.tokenizer->adds_bos() && text.tokenizer->bos_id()) {
    const std::string_view bos = text.tokenizer->piece(*text.tokenizer->bos_id());
    if (!bos.empty() && std::string_view(prompt).starts_with(bos)) add_special = false;
  }
  return text.tokenizer->encode(prompt, {.add_special = add_special, .parse_special = true});
}

Json parse_variables(const std::vector<std::string>& pairs) {
  Json variables = Json::object();
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw_error(ErrorCode::invalid_input, "template variable '{}' is not NAME=VALUE", printable(pair));
    // The conversation's own, whatever a variable of the name says.
    if (const std::string name = pair.substr(0, equals); name == "messages" || name == "tools")
      throw_error(ErrorCode::invalid_input,
                  "template variable '{}' is the conversation's own: it cannot be set", name);
    const std::string value = pair.substr(equals + 1);
    variables[pair.substr(0, equals)] =
        find_ordered_json(value, pair.substr(0, equals)).value_or(Json(value));
  }
  return variables;
}

std::unique_ptr<TextModel> TextModel::open(const std::filesystem::path& path, const EngineOptions& options) {
  return open(path, TextSide::open(path), options);
}

std::unique_ptr<TextModel> TextModel::open(const std::filesystem::path& path, TextSide text,
                                           const EngineOptions& options) {
  std::unique_ptr<TextModel> model(new TextModel);
  model->text_ = std::move(text);
  model->engine_ = Engine::open(path, options);
  const int64_t width = model->engine_->model().info().vocab;
  model->tokenizer().check_width(width, path.string());
  // Tokens that were only added name what a text model has no logits for (Gemma 3's pictures, for example).
  if (model->tokenizer().vocab_size() > width && options.load.note)
    options.load.note(
        fmt::format("{}: {} added tokens are beyond the {} logits of the model: it cannot take "
                    "or give them",
                    printable(path.string()), model->tokenizer().vocab_size() - width, width));
  std::vector<int32_t>& stops = model->stop_ids_;
  stops = model->engine_->model().info().eos_ids;
  const auto eog = model->tokenizer().eog_ids();
  stops.insert(stops.end(), eog.begin(), eog.end());
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return model;
}

std::shared_ptr<const DryBreakers> TextModel::dry_breakers(const std::vector<std::string>& texts) {
  std::shared_ptr<const DryBreakers>& known = dry_breakers_[texts];
  if (!known) known = make_dry_breakers(tokenizer(), texts);
  return known;
}

namespace {

// What turns one row's tokens into text.
struct Stream {
  Stream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
         std::span<const int32_t> context, std::vector<int32_t> special)
      : decoder(tokenizer, {.skip_special = special.empty()}, context),
        matcher(std::move(stops)),
        shown_special(std::move(special)) {}
  tokenizer::StreamDecoder decoder;
  StopMatcher matcher;
  std::vector<int32_t> shown_special;
  std::string text;
  std::function<void(std::string_view)> on_text;
  void emit(const std::string& piece) {
    if (piece.empty()) return;
    text += piece;
    if (on_text) on_text(piece);
  }
};

}  // namespace

bool serve_text(TextModel& model, const std::function<std::optional<TextRequest>()>& next,
                const std::function<void(size_t, TextOutcome)>& done,
                const std::function<bool()>& cancelled) {
  std::map<size_t, Stream> streams;  // of the rows under way
  size_t arrived = 0;
  auto next_row = [&]() -> std::optional<Request> {
    std::optional<TextRequest> request = next();
    if (!request) return std::nullopt;
    // The last tokens of the prompt tell the decoder whether the text begins here.
    const std::span<const int32_t> prompt = request->prompt;
    Stream& stream =
        streams
            .try_emplace(arrived++, model.tokenizer(), std::move(request->stop),
                         prompt.last(std::min<size_t>(prompt.size(), 8)), std::move(request->shown_special))
            .first->second;
    stream.on_text = std::move(request->on_text);
    Request row;
    row.prompt = std::move(request->prompt);
    row.sampling = std::move(request->sampling);
    if (row.sampling.xtc_special.empty()) {
      row.sampling.xtc_special = model.stop_ids();
      for (int32_t id : model.tokenizer().encode("\n", {.add_special = false, .parse_special = false}))
        row.sampling.xtc_special.push_back(id);
    }
    if (row.sampling.dry_multiplier != 0 && !row.sampling.dry_breakers)
      row.sampling.dry_breakers = model.dry_breakers(row.sampling.dry_sequence_breakers);
    row.max_tokens = request->max_tokens;
    row.min_tokens = request->min_tokens;
    if (!request->ignore_eos) row.stop_ids = model.stop_ids();
    row.top_logprobs = request->top_logprobs;
    row.context = request->context;
    row.stable_tokens = request->stable_tokens;
    row.on_progress = std::move(request->on_progress);
    const std::vector<int32_t>& stops = model.stop_ids();
    const bool ignore_eos = request->ignore_eos;
    const tokenizer::Tokenizer& tokenizer = model.tokenizer();
    row.on_token = [&stream, &stops, &tokenizer, ignore_eos](const Committed& committed) {
      // An end token has no text of its own; neither has a special one that nobody asked to see.
      if (!ignore_eos && std::binary_search(stops.begin(), stops.end(), committed.id)) return true;
      const std::vector<int32_t>& shown = stream.shown_special;
      if (!shown.empty() && tokenizer.exists(committed.id) && tokenizer.is_special(committed.id) &&
          std::find(shown.begin(), shown.end(), committed.id) == shown.end())
        return true;
      stream.emit(stream.matcher.push(stream.decoder.push(committed.id)));
      return !stream.matcher.stopped();
    };
    return row;
  };
  auto row_done = [&](size_t number, Outcome outcome) {
    Stream& stream = streams.at(number);
    stream.emit(stream.matcher.push(stream.decoder.finish()));
    stream.emit(stream.matcher.finish());
    if (stream.matcher.stopped()) outcome.reason = FinishReason::stop;
    done(number, {std::move(stream.text), std::move(outcome), stream.matcher.matched()});
    streams.erase(number);
  };
  return model.engine().serve(next_row, row_done, cancelled);
}

std::vector<TextOutcome> generate_text(TextModel& model, std::vector<TextRequest> requests,
                                       const std::function<bool()>& cancelled) {
  std::vector<TextOutcome> results(requests.size());
  for (TextOutcome& result : results) result.outcome.reason = FinishReason::cancelled;
  size_t taken = 0;
  serve_text(
      model,
      [&]() -> std::optional<TextRequest> {
        if (taken == requests.size()) return std::nullopt;
        return std::move(requests[taken++]);
      },
      [&](size_t number, TextOutcome outcome) { results[number] = std::move(outcome); }, cancelled);
  return results;
}

}  // namespace kvasir::engine
