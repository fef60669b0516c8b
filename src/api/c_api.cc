// The C API over TextModel: exceptions become statuses here, and nowhere else.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_error.h"
#include "base/ordered_json.h"
#include "engine/text_model.h"
#include "kvasir/kvasir.h"

struct kvasir_model {
  std::unique_ptr<kvasir::engine::TextModel> text;
  kvasir::engine::Context conversation;  // of kvasir_chat, kept between calls
};

namespace {

using namespace kvasir;

kvasir_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_input:
      return KVASIR_INVALID_INPUT;
    case ErrorCode::unsupported:
      return KVASIR_UNSUPPORTED;
    case ErrorCode::corrupt_file:
      return KVASIR_CORRUPT_FILE;
    case ErrorCode::not_found:
      return KVASIR_NOT_FOUND;
    case ErrorCode::resource_exhausted:
      return KVASIR_RESOURCE_EXHAUSTED;
    case ErrorCode::cancelled:
      return KVASIR_CANCELLED;
    case ErrorCode::internal:
      return KVASIR_INTERNAL;
  }
  return KVASIR_INTERNAL;
}

kvasir_status report(kvasir_error* error, kvasir_status status, const char* message) {
  if (error != nullptr) {
    error->status = status;
    std::strncpy(error->message, message, sizeof error->message - 1);
    error->message[sizeof error->message - 1] = '\0';
  }
  return status;
}

template <typename Work>
kvasir_status guarded(kvasir_error* error, Work&& work) {
  if (error != nullptr) *error = {};
  try {
    return work();
  } catch (const Error& e) {
    return report(error, status_of(e.code()), e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    return report(error, status_of(file_error(e.code().value())), e.what());
  } catch (const std::bad_alloc&) {
    return report(error, KVASIR_RESOURCE_EXHAUSTED, "out of memory outside the memory plan");
  } catch (const std::exception& e) {
    return report(error, KVASIR_INTERNAL, e.what());
  }
}

engine::EngineOptions to_options(const kvasir_options* given) {
  kvasir_options defaults;
  kvasir_default_options(&defaults);
  const kvasir_options& in = given != nullptr ? *given : defaults;
  engine::EngineOptions out;
  out.load.context = in.context;
  out.load.threads = in.threads;
  if (in.chunk != 0) out.load.chunk = in.chunk;
  out.load.isa = resolve_isa_level(in.isa != nullptr ? in.isa : "auto");
  out.load.activations =
      models::parse_activations(in.activations != nullptr ? in.activations : "auto", "activations");
  out.memory_budget = in.memory_budget;
  out.kept_contexts = 1;  // the conversation of kvasir_chat, while kvasir_generate runs
  out.checkpoints = true;
  return out;
}

void require(bool ok, const char* what) {
  if (!ok) throw_error(ErrorCode::invalid_input, "{} must not be NULL", what);
}

kvasir_status run(kvasir_model* model, std::vector<int32_t> prompt, engine::Context* context,
                  const kvasir_sampling* sampling, kvasir_on_text on_text, void* user_data,
                  kvasir_result* result) {
  kvasir_sampling defaults;
  kvasir_default_sampling(&defaults);
  const kvasir_sampling& in = sampling != nullptr ? *sampling : defaults;
  engine::TextRequest request;
  request.prompt = std::move(prompt);
  request.context = context;
  request.sampling.temperature = in.temperature;
  request.sampling.top_k = in.top_k;
  request.sampling.top_p = in.top_p;
  request.sampling.min_p = in.min_p;
  request.sampling.repetition_penalty = in.repetition_penalty;
  request.sampling.seed = in.seed;
  request.max_tokens = in.max_tokens;
  bool stop = false;
  request.on_text = [&](std::string_view piece) {
    if (on_text != nullptr && !stop && !piece.empty())
      stop = on_text(piece.data(), piece.size(), user_data) != 0;
  };
  std::vector<engine::TextRequest> requests;
  requests.push_back(std::move(request));
  const std::vector<engine::TextOutcome> outcomes =
      engine::generate_text(*model->text, std::move(requests), [&] { return stop; });
  const engine::Outcome& outcome = outcomes.front().outcome;
  if (result != nullptr) {
    result->prompt_tokens = outcome.timings.prompt_tokens;
    result->completion_tokens = outcome.timings.completion_tokens;
    result->prefill_seconds = outcome.timings.prefill_seconds;
    result->decode_seconds = outcome.timings.decode_seconds;
    result->finish_reason = engine::name(outcome.reason).data();
  }
  return outcome.reason == engine::FinishReason::cancelled ? KVASIR_CANCELLED : KVASIR_OK;
}

}  // namespace

extern "C" {

const char* kvasir_version(void) {
  return KVASIR_VERSION;
}

void kvasir_default_options(kvasir_options* options) {
  if (options != nullptr) *options = {};
}

void kvasir_default_sampling(kvasir_sampling* sampling) {
  if (sampling == nullptr) return;
  *sampling = {};
  sampling->temperature = 0.7f;
  sampling->repetition_penalty = 1;
  sampling->max_tokens = -1;
}

kvasir_status kvasir_fit(const char* path, const kvasir_options* options, kvasir_memory* memory,
                         kvasir_error* error) {
  return guarded(error, [&] {
    require(path != nullptr, "path");
    require(memory != nullptr, "memory");
    const engine::MemoryReport report = engine::Engine::plan(path, to_options(options));
    *memory = {report.weights_bytes, report.kv_bytes,    report.workspace_bytes,
               report.process_bytes, report.total_bytes, report.available_bytes,
               report.context,       report.max_context, report.fits ? 1 : 0};
    return KVASIR_OK;
  });
}

kvasir_model* kvasir_open(const char* path, const kvasir_options* options, kvasir_error* error) {
  kvasir_model* model = nullptr;
  guarded(error, [&] {
    require(path != nullptr, "path");
    auto opened = std::make_unique<kvasir_model>();
    opened->text = engine::TextModel::open(path, to_options(options));
    opened->conversation = opened->text->engine().new_context();
    model = opened.release();
    return KVASIR_OK;
  });
  return model;
}

void kvasir_close(kvasir_model* model) {
  if (model == nullptr) return;
  model->conversation = {};
  delete model;
}

kvasir_status kvasir_generate(kvasir_model* model, const char* prompt, const kvasir_sampling* sampling,
                              kvasir_on_text on_text, void* user_data, kvasir_result* result,
                              kvasir_error* error) {
  return guarded(error, [&] {
    require(model != nullptr, "model");
    require(prompt != nullptr, "prompt");
    return run(model, engine::encode_prompt(model->text->text(), prompt, false), nullptr, sampling, on_text,
               user_data, result);
  });
}

kvasir_status kvasir_chat(kvasir_model* model, const char* messages_json, const kvasir_sampling* sampling,
                          kvasir_on_text on_text, void* user_data, kvasir_result* result,
                          kvasir_error* error) {
  return guarded(error, [&] {
    require(model != nullptr, "model");
    require(messages_json != nullptr, "messages_json");
    const auto messages = parse_ordered_json(messages_json, "messages_json");
    if (!messages.is_array()) throw_error(ErrorCode::invalid_input, "messages_json is no JSON list");
    const std::string text = model->text->text().render(messages, nullptr, nlohmann::ordered_json::object());
    return run(model, engine::encode_prompt(model->text->text(), text, true), &model->conversation, sampling,
               on_text, user_data, result);
  });
}

int64_t kvasir_tokenize(kvasir_model* model, const char* text, size_t length, int add_special, int32_t* ids,
                        size_t capacity, kvasir_error* error) {
  int64_t count = -1;
  guarded(error, [&] {
    require(model != nullptr, "model");
    require(text != nullptr || length == 0, "text");
    const std::vector<int32_t> all =
        model->text->tokenizer().encode({text, length}, {.add_special = add_special != 0});
    if (ids != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
    count = static_cast<int64_t>(all.size());
    return KVASIR_OK;
  });
  return count;
}

int64_t kvasir_detokenize(kvasir_model* model, const int32_t* ids, size_t count, char* text, size_t capacity,
                          kvasir_error* error) {
  int64_t length = -1;
  guarded(error, [&] {
    require(model != nullptr, "model");
    require(ids != nullptr || count == 0, "ids");
    const tokenizer::Tokenizer& tokenizer = model->text->tokenizer();
    tokenizer.check_ids({ids, count}, "ids");
    const std::string all = tokenizer.decode({ids, count});
    if (text != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), text);
    length = static_cast<int64_t>(all.size());
    return KVASIR_OK;
  });
  return length;
}

}  // extern "C"
