#include "hub/reference.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir::hub {
namespace {

struct Case {
  const char* text;
  const char* repo;
  const char* quant = "";
  const char* revision = "";
  const char* file = "";
};

TEST(Reference, Forms) {
  const Case cases[] = {
      {"org/name", "org/name"},
      {"org/name:Q4_K_M", "org/name", "Q4_K_M"},
      {"org/name@v1.0", "org/name", "", "v1.0"},
      {"org/name:Q8_0@refs/pr/3", "org/name", "Q8_0", "refs/pr/3"},
      {"org/name/file.gguf", "org/name", "", "", "file.gguf"},
      {"org/name/dir/file.gguf@main", "org/name", "", "main", "dir/file.gguf"},
      {"hf.co/org/name", "org/name"},
      {"hf.co/gpt2", "gpt2"},
      {"hf.co/org/name:IQ2_XXS", "org/name", "IQ2_XXS"},
      {"hf://org/name", "org/name"},
      {"hf://models/org/name", "org/name"},
      {"https://huggingface.co/org/name/", "org/name"},
      {"https://huggingface.co/org/name/tree/main", "org/name", "", "main"},
      {"https://huggingface.co/org/name/blob/v2/a/b.gguf", "org/name", "", "v2", "a/b.gguf"},
      {"https://huggingface.co/org/name/resolve/main/b.gguf?download=true", "org/name", "", "main", "b.gguf"},
      {"https://huggingface.co/org/name/blob/refs/pr/7/b.gguf", "org/name", "", "refs/pr/7", "b.gguf"},
      {"a.b_c-d/e.f_g-1", "a.b_c-d/e.f_g-1"},
  };
  for (const Case& c : cases) {
    const auto reference = parse_reference(c.text);
    ASSERT_TRUE(reference) << c.text;
    EXPECT_EQ(reference->repo, c.repo) << c.text;
    EXPECT_EQ(reference->quant, c.quant) << c.text;
    EXPECT_EQ(reference->revision, c.revision) << c.text;
    EXPECT_EQ(reference->file, c.file) << c.text;
    // What is printed is read back as the same.
    const auto again = parse_reference(reference->is_link && reference->repo.find('/') == std::string::npos
                                           ? "hf.co/" + reference->text()
                                           : reference->text());
    ASSERT_TRUE(again) << reference->text();
    EXPECT_EQ(again->text(), reference->text());
  }
}

TEST(Reference, OtherThings) {
  for (const char* text : {"", "smollm2", "model.gguf", "./org/name", "../x/y", "/org/name", "~/x/y",
                           "llama3.2:1b", "ftp://a/b"})
    EXPECT_FALSE(parse_reference(text)) << text;
}

TEST(Reference, Refused) {
  for (const char* text :
       {"org/", "org/name@", "org/name:", "org/../name", "org/na--me", "org/.name", "org/name.git",
        "org/name-", "org/name/../../x", "org/name/a//b", "org/name/file:Q4", "org/name@../x", "org/na me",
        "hf.co/", "org/name@a\\b", "https://hf.co/org/name://hf.co/o/x", "org/name:../x", "org/name:Q4\\x"})
    EXPECT_THROW((void)parse_reference(text), Error) << text;
}

// The stem of a file names its quantization too, with the folder that it lies in.
TEST(Reference, QuantizationInAFolder) {
  const auto reference = parse_reference("org/name:Q4_K_M/model");
  ASSERT_TRUE(reference);
  EXPECT_EQ(reference->quant, "Q4_K_M/model");
  EXPECT_EQ(parse_reference(reference->text())->quant, "Q4_K_M/model");
}

TEST(Reference, OwnerCalledAsTheHub) {
  for (const char* text : {"hf.co/hf.co/name", "hf.co/huggingface.co/name:Q8_0@v2"}) {
    const auto reference = parse_reference(text);
    ASSERT_TRUE(reference);
    EXPECT_EQ(reference->text(), text);
    EXPECT_EQ(parse_reference(reference->text())->repo, reference->repo);
  }
}

// In a link, '@' and ':' after the revision belong to the file's name: it is printed as a link again.
TEST(Reference, FileWithTheSignsOfOtherParts) {
  for (const char* text : {"hf.co/org/name/blob/main/ab:c.gguf", "hf.co/org/name/blob/v2/x@y/z"}) {
    const auto reference = parse_reference(text);
    ASSERT_TRUE(reference);
    EXPECT_EQ(reference->text(), text);
    EXPECT_EQ(parse_reference(reference->text())->file, reference->file);
  }
}

TEST(Reference, SafePaths) {
  for (const char* path : {"a", "a/b.c", "a b/ü", "...", "a/.hidden"})
    EXPECT_TRUE(is_safe_path(path)) << path;
  for (const std::string_view path :
       {std::string_view(""), std::string_view("/a"), std::string_view("a/"), std::string_view("a//b"),
        std::string_view(".."), std::string_view("a/../b"), std::string_view("./a"), std::string_view("a\\b"),
        std::string_view("c:a"), std::string_view("a\0b", 3)})
    EXPECT_FALSE(is_safe_path(path)) << path;
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
  EXPECT_TRUE(is_safe_path(std::string(255, 'a')));
}

}  // namespace
}  // namespace kvasir::hub
