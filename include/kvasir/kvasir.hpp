// kvasir for C++: RAII and exceptions over the C API (kvasir.h), so that it is independent of compiler and standard library.
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::api {

class Error : public std::runtime_error {
 public:
  explicit Error(const kvasir_error& error) : std::runtime_error(error.message), status_(error.status) {}
  kvasir_status status() const { return status_; }

 private:
  kvasir_status status_;
};

inline kvasir_options default_options() {
  kvasir_options options;
  kvasir_default_options(&options);
  return options;
}
inline kvasir_sampling default_sampling() {
  kvasir_sampling sampling;
  kvasir_default_sampling(&sampling);
  return sampling;
}

class Model {
 public:
  // A piece of the answer; return false to stop.
  using OnText = std::function<bool(std::string_view)>;

  explicit Model(const std::string& path, const kvasir_options& options = default_options()) {
    kvasir_error error = {};
    model_.reset(kvasir_open(path.c_str(), &options, &error));
    if (!model_) throw Error(error);
  }

  // Completes a text as it is; returns the completion.
  std::string generate(const std::string& prompt, const kvasir_sampling& sampling = default_sampling(),
                       const OnText& on_text = {}) {
    return run(kvasir_generate, prompt, sampling, on_text);
  }
  // Answers a conversation given as a JSON list of messages; returns the answer.
  std::string chat(const std::string& messages_json, const kvasir_sampling& sampling = default_sampling(),
                   const OnText& on_text = {}) {
    return run(kvasir_chat, messages_json, sampling, on_text);
  }
  const kvasir_result& last_result() const { return result_; }

  std::vector<int32_t> tokenize(std::string_view text, bool add_special = true) {
    kvasir_error error = {};
    std::vector<int32_t> ids;
    int64_t count = kvasir_tokenize(model_.get(), text.data(), text.size(), add_special, nullptr, 0, &error);
    if (count < 0) throw Error(error);
    ids.resize(static_cast<size_t>(count));
    count = kvasir_tokenize(model_.get(), text.data(), text.size(), add_special, ids.data(), ids.size(), &error);
    if (count < 0) throw Error(error);
    return ids;
  }

 private:
  struct Close {
    void operator()(kvasir_model* model) const { kvasir_close(model); }
  };
  struct Sink {
    const OnText& on_text;
    std::string text;
    static int receive(const char* piece, size_t length, void* self) {
      Sink& sink = *static_cast<Sink*>(self);
      sink.text.append(piece, length);
      return sink.on_text && !sink.on_text({piece, length}) ? 1 : 0;
    }
  };
  template <typename Function>
  std::string run(Function function, const std::string& input, const kvasir_sampling& sampling, const OnText& on_text) {
    kvasir_error error = {};
    Sink sink{on_text, {}};
    const kvasir_status status =
        function(model_.get(), input.c_str(), &sampling, &Sink::receive, &sink, &result_, &error);
    if (status != KVASIR_OK && status != KVASIR_CANCELLED) throw Error(error);
    return sink.text;
  }

  std::unique_ptr<kvasir_model, Close> model_;
  kvasir_result result_ = {};
};

}  // namespace kvasir::api
