// Start-up (parse) and rendering of chat templates.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "chat/template.h"

namespace {

using kvasir::chat::ChatTemplate;
using kvasir::chat::Json;
using kvasir::chat::RenderRequest;

std::string source_of(const std::string& name) {
  std::ifstream file(std::filesystem::path(KVASIR_TEST_DATA) / "chat" / "templates" / (name + ".jinja"));
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

RenderRequest conversation(int turns) {
  RenderRequest request;
  for (int i = 0; i < turns; ++i) {
    request.messages.push_back(
        {{"role", "user"}, {"content", fmt::format("Question {}: {}", i, std::string(200, 'q'))}});
    request.messages.push_back(
        {{"role", "assistant"}, {"content", fmt::format("Answer {}: {}", i, std::string(600, 'a'))}});
  }
  request.messages.push_back({{"role", "user"}, {"content", "The last one?"}});
  request.tools = Json::parse(
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}])");
  return request;
}

const char* kNames[] = {"chatml", "hermes_tools", "llama3", "gemma4", "harmony"};

void parse(benchmark::State& state) {
  const std::string source = source_of(kNames[state.range(0)]);
  for (auto _ : state) benchmark::DoNotOptimize(ChatTemplate::parse(source));
  state.SetLabel(kNames[state.range(0)]);
}
BENCHMARK(parse)->DenseRange(0, 4)->Unit(benchmark::kMicrosecond);

void render(benchmark::State& state) {
  const ChatTemplate chat = ChatTemplate::parse(source_of(kNames[state.range(0)]));
  const RenderRequest request = conversation(static_cast<int>(state.range(1)));
  size_t bytes = 0;
  for (auto _ : state) bytes += chat.render(request, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).size();
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
  state.SetLabel(kNames[state.range(0)]);
}
BENCHMARK(render)->ArgsProduct({{0, 1, 2, 3, 4}, {1, 100}})->Unit(benchmark::kMicrosecond);

}  // namespace
