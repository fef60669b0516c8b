#include "cli/input.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir::cli {
namespace {

TEST(Input, DevicesAndFoldersAreToldApart) {
  EXPECT_EQ(read_input("/dev/null", 100), "");
  EXPECT_THROW(read_input("/tmp", 100), Error);
  EXPECT_THROW(read_input("/no/such/file", 100), Error);
  EXPECT_THROW(read_input("/dev/zero", 100), Error);  // more than the limit
}

TEST(Input, TheFirstByteThatIsNoUtf8IsNamed) {
  check_utf8("h\xC3\xA9 \xEF\xBF\xBD \xF0\x9F\x98\x80", "the prompt");  // U+FFFD itself is fine
  const struct {
    const char* text;
    const char* says;
  } cases[] = {{"ab\xFF", "byte 2 is 0xFF"},
               {"\xC3", "byte 0 is 0xC3"},
               {"a\xED\xA0\x80", "byte 1 is 0xED"},          // a surrogate
               {"\xEF\xBF\xBD\xC0\xAF", "byte 3 is 0xC0"}};  // an overlong form
  for (const auto& c : cases) {
    try {
      check_utf8(c.text, "the prompt");
      ADD_FAILURE() << c.says;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(c.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace kvasir::cli
