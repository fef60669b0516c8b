// A store's files without a model: names, import, export, verification.
#include "kv/store.h"

#include <gtest/gtest.h>

#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::counting;
using testing::difference;
using testing::TestRow;
using Fixture = testing::StoreFixture;
using testing::flip_byte;

TEST(DiskStore, ImportReplacesWhatIsEqual) {
  Fixture f, from;
  const auto exported = [&](std::string_view name, const std::vector<int32_t>& tokens) {
    TestRow row = from.computed(tokens);
    DiskStore store(from.options());
    fs::path entry;
    if (name.empty()) {
      store.put("", row.tokens, row.sequence);
      entry = store.entries().back().path;
    } else {
      store.save(name, "", row.tokens, row.sequence, "{}");
      for (const StoreEntry& e : store.entries())
        if (e.name == name) entry = e.path;
    }
    const fs::path file = from.dir / fmt::format("{}{}.export", name, tokens.size());
    export_entry(entry, file);
    return file;
  };
  const fs::path talk = exported("talk", counting(0, 12));
  import_entry(talk, f.dir);
  const fs::path again = import_entry(talk, f.dir);
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(find_entry(f.dir, "talk"), again);
  // Another conversation of that name is not given up, nor is the new one hidden behind it.
  try {
    import_entry(exported("talk", counting(0, 13)), f.dir);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_NE(std::string(error.what()).find("kvasir kv rm"), std::string::npos) << error.what();
  }
  EXPECT_EQ(find_entry(f.dir, "talk"), again);
  import_entry(exported("other", counting(0, 12)), f.dir);
  EXPECT_EQ(f.files(), 2u);
  const fs::path prefix = exported("", counting(7, 9));
  import_entry(prefix, f.dir);
  import_entry(prefix, f.dir);
  EXPECT_EQ(f.files(), 3u);
}

TEST(DiskStore, EntriesAreNamedByAllOfANameOrSomeDigits) {
  Fixture f;
  DiskStore store(f.options());
  const auto save = [&](std::string_view name, int32_t from) {
    TestRow row = f.computed(counting(from, 9));
    store.save(name, "", row.tokens, row.sequence, "{}");
  };
  save("talk", 0);
  const fs::path talk = find_entry(f.dir, "talk");
  const std::string digits = talk.filename().native().substr(6);  // behind "saved-"
  EXPECT_EQ(find_entry(f.dir, talk.filename().native()), talk);
  EXPECT_EQ(find_entry(f.dir, digits.substr(0, 4)), talk);
  EXPECT_EQ(find_entry(f.dir, "saved-" + digits.substr(0, 4)), talk);
  for (const std::string& which : {std::string(), std::string("s"), std::string("saved-"),
                                   digits.substr(0, 3), "saved-" + digits.substr(0, 3), std::string("tal")})
    EXPECT_THROW(find_entry(f.dir, which), Error) << which;
  // A name that another entry's file begins with.
  save(digits.substr(0, 5), 100);
  EXPECT_NE(find_entry(f.dir, digits.substr(0, 5)), talk);
  // Prefixes have no name to be found by.
  TestRow row = f.computed(counting(50, 9));
  store.put("", row.tokens, row.sequence);
  EXPECT_THROW(find_entry(f.dir, ""), Error);
}

TEST(DiskStore, VerbsWithoutAModel) {
  Fixture f({.page = 4, .window = 6, .sinks = 1});
  fs::path entry;
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 30));
    store.save("talk", "", row.tokens, row.sequence, "m");
    entry = store.entries()[0].path;
  }
  EXPECT_EQ(list_store(f.dir).size(), 1u);
  EXPECT_EQ(verify_store(f.dir)[0].error, "");
  EXPECT_EQ(find_entry(f.dir, "talk"), entry);
  EXPECT_EQ(find_entry(f.dir, entry.filename().native().substr(0, 12)), entry);
  EXPECT_THROW(find_entry(f.dir, "nobody"), Error);
  const fs::path dense = f.dir / "out.bin";
  export_entry(entry, dense);
  Fixture other({.page = 8, .window = 6, .sinks = 1});
  const fs::path imported = import_entry(dense, other.dir, 8);
  EXPECT_EQ(verify_store(other.dir)[0].error, "");
  DiskStore store(other.options());
  auto conversation = store.load("talk", other.cache);
  TestRow row{std::move(conversation.sequence), conversation.tokens};
  EXPECT_EQ(difference(row), "");
  flip_byte(imported, 3);
  EXPECT_EQ(list_store(other.dir)[0].error, "");  // of headers
  const StoredFile damaged = verify_store(other.dir)[0];
  EXPECT_NE(damaged.error, "");
  EXPECT_EQ(damaged.header.name, "talk");
  EXPECT_EQ(damaged.header.tokens.size(), 30u);
  EXPECT_EQ(damaged.error.find(imported.string()), 0u);
  EXPECT_EQ(damaged.error.find(imported.string(), 1), std::string::npos) << damaged.error;
  EXPECT_THROW(export_entry(imported, other.dir / "x"), Error);
  EXPECT_THROW(list_store(f.dir / "none"), Error);
}

}  // namespace
}  // namespace kvasir::kv
