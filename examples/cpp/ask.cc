// Asks a chat model one question with the C++ API: ask MODEL QUESTION
#include <iostream>
#include <kvasir/kvasir.hpp>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: ask MODEL QUESTION\n";
    return 2;
  }
  try {
    kvasir_options options = kvasir::api::default_options();
    options.context = 1024;
    kvasir::api::Model model(argv[1], options);
    kvasir_sampling sampling = kvasir::api::default_sampling();
    sampling.temperature = 0;
    sampling.max_tokens = 64;
    // A question with quotes would need escaping; a JSON library does that in a real program.
    const std::string messages = std::string(R"([{"role": "user", "content": ")") + argv[2] + R"("}])";
    model.chat(messages, sampling, [](std::string_view piece) {
      std::cout << piece << std::flush;
      return true;
    });
    std::cout << "\n";
    std::cerr << model.last_result().completion_tokens << " tokens\n";
  } catch (const kvasir::api::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
