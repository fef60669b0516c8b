// The C API from outside: bad arguments are errors and nothing else; answers, ids and texts are what the
// publisher's tokenizer and a greedy choice give.
#include <gtest/gtest.h>
#include <kvasir/kvasir.h>

#include <string>
#include <vector>

namespace {

constexpr char kSmol[] = KVASIR_MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";

class CApi : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    kvasir_options options;
    kvasir_default_options(&options);
    options.context = 256;
    options.threads = 2;
    kvasir_error error = {};
    model_ = kvasir_open(kSmol, &options, &error);
    ASSERT_NE(model_, nullptr) << error.message;
  }
  static void TearDownTestSuite() { kvasir_close(model_); }

  static kvasir_sampling greedy(int64_t tokens) {
    kvasir_sampling sampling;
    kvasir_default_sampling(&sampling);
    sampling.temperature = 0;
    sampling.max_tokens = tokens;
    return sampling;
  }
  static int collect(const char* text, size_t length, void* out) {
    static_cast<std::string*>(out)->append(text, length);
    return 0;
  }
  static kvasir_model* model_;
};
kvasir_model* CApi::model_ = nullptr;

TEST_F(CApi, TextBecomesIdsAndTextAgain) {
  const std::string text = "Hello world";
  int32_t ids[8] = {};
  kvasir_error error = {};
  // As `tokenizers` has it with SmolLM2's vocabulary.
  ASSERT_EQ(kvasir_tokenize(model_, text.data(), text.size(), 0, ids, 8, &error), 2) << error.message;
  EXPECT_EQ(ids[0], 19556);
  EXPECT_EQ(ids[1], 905);
  char back[32] = {};
  ASSERT_EQ(kvasir_detokenize(model_, ids, 2, back, sizeof back, &error), 11);
  EXPECT_EQ(std::string(back, 11), text);
  // With less room, what fits is written and all is counted.
  EXPECT_EQ(kvasir_tokenize(model_, text.data(), text.size(), 0, nullptr, 0, &error), 2);
  char little[3] = {};
  EXPECT_EQ(kvasir_detokenize(model_, ids, 2, little, sizeof little, &error), 11);
  EXPECT_EQ(std::string(little, 3), "Hel");
}

TEST_F(CApi, IdsThatAreNoTokensAreRefused) {
  for (const int32_t bad : {-1, 49152, 99999999}) {
    const int32_t ids[] = {905, bad};
    kvasir_error error = {};
    EXPECT_EQ(kvasir_detokenize(model_, ids, 2, nullptr, 0, &error), -1) << bad;
    EXPECT_EQ(error.status, KVASIR_INVALID_INPUT);
    EXPECT_NE(std::string(error.message).find("entry 1 is " + std::to_string(bad)), std::string::npos)
        << error.message;
  }
}

TEST_F(CApi, MessagesThatAreNoConversationAreRefused) {
  const std::string deep(100000, '['), closed(100000, ']');
  const std::string nested = R"([{"role":"user","content":"hi","x":)" + deep + closed + "}]";
  for (const std::string& messages : {std::string("{"), std::string("{}"), std::string("[1]"),
                                      std::string(R"([{"role":"user"},"x"])"), nested}) {
    kvasir_error error = {};
    const kvasir_sampling sampling = greedy(1);
    EXPECT_EQ(kvasir_chat(model_, messages.c_str(), &sampling, nullptr, nullptr, nullptr, &error),
              KVASIR_INVALID_INPUT)
        << messages.substr(0, 50);
    EXPECT_NE(error.message[0], '\0');
  }
}

TEST_F(CApi, NothingIsNoArgument) {
  const kvasir_sampling sampling = greedy(1);
  EXPECT_EQ(kvasir_generate(nullptr, "x", &sampling, nullptr, nullptr, nullptr, nullptr),
            KVASIR_INVALID_INPUT);
  EXPECT_EQ(kvasir_generate(model_, nullptr, &sampling, nullptr, nullptr, nullptr, nullptr),
            KVASIR_INVALID_INPUT);
  EXPECT_EQ(kvasir_chat(model_, nullptr, &sampling, nullptr, nullptr, nullptr, nullptr),
            KVASIR_INVALID_INPUT);
  EXPECT_EQ(kvasir_tokenize(nullptr, "x", 1, 0, nullptr, 0, nullptr), -1);
  EXPECT_EQ(kvasir_detokenize(model_, nullptr, 1, nullptr, 0, nullptr), -1);
  kvasir_options options;
  kvasir_default_options(&options);
  kvasir_error error = {};
  EXPECT_EQ(kvasir_open(nullptr, &options, &error), nullptr);
  EXPECT_EQ(kvasir_open("/no/such/model.gguf", &options, &error), nullptr);
  EXPECT_EQ(error.status, KVASIR_NOT_FOUND);
  kvasir_close(nullptr);
}

TEST_F(CApi, AnswersAndStopsWhenAsked) {
  const kvasir_sampling sampling = greedy(12);
  kvasir_error error = {};
  kvasir_result result = {};
  std::string text;
  ASSERT_EQ(kvasir_generate(model_, "The capital of France is", &sampling, collect, &text, &result, &error),
            KVASIR_OK)
      << error.message;
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
  EXPECT_EQ(result.prompt_tokens, 5);
  EXPECT_LE(result.completion_tokens, 12);
  std::string again;
  ASSERT_EQ(kvasir_generate(model_, "The capital of France is", &sampling, collect, &again, nullptr, &error),
            KVASIR_OK);
  EXPECT_EQ(again, text);
  const auto stop = [](const char*, size_t, void*) { return 1; };
  EXPECT_EQ(kvasir_generate(model_, "The capital of France is", &sampling, stop, nullptr, &result, &error),
            KVASIR_CANCELLED);
  EXPECT_LT(result.completion_tokens, 12);
}

}  // namespace
