// A store's files without a model: names, import, export, verification.
#include "kv/store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::counting;
using testing::difference;
using testing::Held;
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

// Whoever replaces an entry removes its file: a reader that has just looked the old one up looks again.
TEST(DiskStore, ALoadFindsWhatTookThePlaceOfTheFileItLookedUp) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 9));
  store.save("talk", "", row.tokens, row.sequence, "{}");
  const fs::path old = store.entries().back().path;
  std::string name = old.filename().string();
  name[name.size() - 5] = name[name.size() - 5] == '0' ? '1' : '0';  // the last digit before .kvk
  fs::rename(old, old.parent_path() / name);
  ASSERT_EQ(store.entries().back().path, old);
  EXPECT_EQ(store.load("talk", "", f.cache).tokens, row.tokens);
  EXPECT_EQ(store.entries().back().path.filename(), name);
  // Gone for good: as if it had never been there.
  fs::remove(old.parent_path() / name);
  try {
    store.load("talk", "", f.cache);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(error.what()).find("nothing is saved as 'talk'"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(store.entries().empty());
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
  auto conversation = store.load("talk", "", other.cache);
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

bool any_says(const std::vector<std::string>& texts, std::string_view part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

// A read never deletes a conversation, whatever its file is called: by the header, not by the name.
TEST(DiskStore, AConversationUnderAnyFileNameIsKeptAndReported) {
  Fixture f;
  fs::path saved, prefix;
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 12)), other = f.computed(counting(50, 12));
    store.save("talk", "", row.tokens, row.sequence, "{}");
    saved = store.entries()[0].path;
    store.put("", other.tokens, other.sequence);
    for (const StoreEntry& entry : store.entries())
      if (entry.name.empty()) prefix = entry.path;
  }
  const fs::path folder = saved.parent_path();
  const fs::path exported = folder / "talk.kvk", renamed = folder / (std::string(32, 'a') + ".kvk");
  export_entry(saved, exported);
  fs::rename(saved, renamed);
  const fs::path disguised = folder / ("saved-" + std::string(32, 'b') + ".kvk");
  fs::rename(prefix, disguised);  // the other way round: kept, too, as its name asks
  std::ofstream(folder / "notes.kvk") << "somebody's own";
  std::ofstream(folder / (std::string(32, 'c') + ".kvk")) << "what a broken disk made of a prefix";

  std::vector<std::string> errors;
  for (const StoredFile& file : verify_store(f.dir)) errors.push_back(file.error);
  ASSERT_EQ(errors.size(), 5u);
  for (const std::string& error : errors) EXPECT_NE(error, "");
  EXPECT_TRUE(any_says(errors, "holds the conversation 'talk'"));
  EXPECT_TRUE(any_says(errors, "holds no conversation"));

  DiskStore store(f.options());
  for (const fs::path& path : {exported, renamed, disguised, folder / "notes.kvk"})
    EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_FALSE(fs::exists(folder / (std::string(32, 'c') + ".kvk")));
  EXPECT_EQ(f.warnings.size(), 5u);
  EXPECT_TRUE(any_says(f.warnings, "kv import` (kept)"));
  EXPECT_TRUE(store.entries().empty());
  try {
    store.load("talk", "", f.cache);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(error.what()).find("kvasir kv import"), std::string::npos) << error.what();
  }
  // The way out that it names.
  import_entry(exported, f.dir);
  EXPECT_EQ(DiskStore(f.options()).load("talk", "", f.cache).tokens, counting(0, 12));
}

// An export in the folder of another model or other settings is no entry of it.
TEST(DiskStore, AnEntryInAForeignFolderIsReportedAndAConversationKept) {
  Fixture f;
  auto other = f.options();
  other.identity.weights_digest = "other";
  TestRow row = f.computed(counting(0, 12));
  DiskStore(other).save("talk", "", row.tokens, row.sequence, "{}");
  const fs::path saved = DiskStore(other).entries()[0].path;
  DiskStore own(f.options());
  own.put("", row.tokens, row.sequence);
  const fs::path strayed = own.entries()[0].path.parent_path() / (std::string(32, 'd') + ".kvk");
  fs::rename(saved, strayed);
  size_t unsound = 0;
  for (const StoredFile& file : verify_store(f.dir)) unsound += !file.error.empty();
  EXPECT_EQ(unsound, 1u);
  EXPECT_EQ(DiskStore(f.options()).entries().size(), 1u);
  EXPECT_TRUE(fs::exists(strayed));
}

// Only what is gone is passed over. A loop of links cannot be opened by anybody, root included.
TEST(DiskStore, WhatCannotBeReadIsNotSound) {
  Fixture f;
  TestRow row = f.computed(counting(0, 12));
  fs::path entry;
  {
    DiskStore store(f.options());
    store.save("talk", "", row.tokens, row.sequence, "{}");
    entry = store.entries()[0].path;
  }
  const fs::path loop = entry.parent_path() / "loop.kvk", folder = entry.parent_path() / "folder.kvk";
  fs::create_symlink(loop, loop);
  fs::create_directory(folder);
  for (const bool verify : {false, true}) {
    std::vector<std::string> errors;
    for (const StoredFile& file : verify ? verify_store(f.dir) : list_store(f.dir))
      if (!file.error.empty()) errors.push_back(file.error);
    EXPECT_EQ(errors.size(), 2u) << verify;
    EXPECT_TRUE(any_says(errors, "symbolic link"));
    EXPECT_TRUE(any_says(errors, "not a kvasir KV cache file"));
  }
  DiskStore store(f.options());
  EXPECT_EQ(store.entries().size(), 1u);
  EXPECT_EQ(f.warnings.size(), 2u);
  EXPECT_TRUE(any_says(f.warnings, "Too many levels of symbolic links (kept)"));
  EXPECT_TRUE(fs::is_symlink(loop) && fs::is_directory(folder));
  EXPECT_THROW(verify_store(loop), Error);
  try {
    read_kvk_header(loop);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Too many levels"), std::string::npos) << error.what();
  }
}

// Somebody else's files and folders: as a user without rights, in a process of its own.
TEST(DiskStore, PermissionsAreNamed) {
  Fixture f;
  TestRow row = f.computed(counting(0, 12)), other = f.computed(counting(50, 12));
  fs::path entry;
  {
    auto options = f.options();
    DiskStore store(options);
    store.save("talk", "", row.tokens, row.sequence, "{}");
    entry = store.entries()[0].path;
    options.identity.weights_digest = "other";
    DiskStore(options).put("", other.tokens, other.sequence);
  }
  for (const auto& at : fs::recursive_directory_iterator(f.dir))
    fs::permissions(at.path(), at.is_directory() ? fs::perms(0755) : fs::perms(0644));
  fs::permissions(f.dir, fs::perms(0755));
  // 1: a file, 2: the folder of another model, 3: the store.
  for (const int what : {1, 2, 3}) {
    fs::path closed = what == 1 ? entry : f.dir;
    if (what == 2)
      for (const auto& at : fs::directory_iterator(f.dir))
        if (at.is_directory() && at.path() != entry.parent_path().parent_path()) closed = at.path();
    const fs::perms before = fs::status(closed).permissions();
    fs::permissions(closed, fs::perms::none);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(10);
      std::string said;
      try {
        for (const StoredFile& file : verify_store(f.dir)) said += file.error;
      } catch (const Error& error) {
        said = error.what();
      }
      if (said.find("Permission denied") == std::string::npos) ::_exit(11);
      if (what == 2) ::_exit(0);
      said.clear();
      try {
        auto options = f.options();
        options.create = false;
        DiskStore store(options);
        store.load("talk", "", f.cache);
      } catch (const Error& error) {
        said = error.what();
      }
      ::_exit(said.find("Permission denied") == std::string::npos ? 12 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    fs::permissions(closed, before);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << what << ": " << WEXITSTATUS(status);
  }
}

TEST(DiskStore, NamesThatAHeaderCannotHoldAreRefused) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 9));
  for (const std::string_view name : {"caf\xE9", "caf\xE8", "\xC3", "\xED\xA0\x80"}) {
    try {
      store.save(name, "", row.tokens, row.sequence, "{}");
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_NE(std::string(error.what()).find("not UTF-8"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(f.files(), 0u);
  for (const std::string_view name : {"caf\xC3\xA9", "caf\xEF\xBF\xBD"})
    store.save(name, "", row.tokens, row.sequence, "{}");
  EXPECT_EQ(f.files(), 2u);
}

// Spec 14: what one namespace keeps serves, replaces and removes nothing of another.
TEST(DiskStore, ConversationsKeepToTheirNamespace) {
  Fixture f;
  DiskStore store(f.options());
  TestRow base = f.computed(counting(0, 9)), tuned = f.computed(counting(100, 9));
  store.save("talk", "lora", tuned.tokens, tuned.sequence, "{}");
  try {
    store.load("talk", "", f.cache);
    FAIL() << "another namespace was served";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("adapters are lora there and none here"), std::string::npos)
        << error.what();
  }
  store.save("talk", "", base.tokens, base.sequence, "{}");
  EXPECT_EQ(store.load("talk", "", f.cache).tokens, base.tokens);
  EXPECT_EQ(store.load("talk", "lora", f.cache).tokens, tuned.tokens);
  EXPECT_FALSE(store.remove_named("talk", "other"));
  EXPECT_TRUE(store.remove_named("talk", "lora"));
  EXPECT_EQ(store.load("talk", "", f.cache).tokens, base.tokens);
}

// The index is derived: what it says of a name is checked in the file.
TEST(DiskStore, AnIndexThatNamesAnotherConversationIsNotBelieved) {
  Fixture f;
  DiskStore store(f.options());
  TestRow one = f.computed(counting(0, 9)), two = f.computed(counting(100, 9));
  store.save("one", "", one.tokens, one.sequence, "{}");
  store.save("two", "", two.tokens, two.sequence, "{}");
  fs::path paths[2];
  for (const StoreEntry& entry : store.entries()) paths[entry.name == "two"] = entry.path;
  fs::rename(paths[0], f.dir / "aside");
  fs::rename(paths[1], paths[0]);
  fs::rename(f.dir / "aside", paths[1]);
  EXPECT_THROW(store.load("one", "", f.cache), Error);
  // The way out that it names: the index is made anew.
  fs::remove(f.dir / "index.sqlite3");
  EXPECT_EQ(DiskStore(f.options()).load("one", "", f.cache).tokens, one.tokens);
}

// Of many that import at once one is left, and whatever the order, no conversation hides another.
TEST(DiskStore, ImportsAtOnceLeaveOneOfAName) {
  Fixture from;
  std::vector<fs::path> files;
  for (const int32_t count : {12, 12, 13}) {
    TestRow row = from.computed(counting(0, count));
    DiskStore store(from.options());
    store.save("talk", "", row.tokens, row.sequence, "{}");
    files.push_back(from.dir / fmt::format("{}.export", files.size()));
    export_entry(store.entries()[0].path, files.back());
  }
  for (int round = 0; round < 10; ++round) {
    Fixture f;
    fs::create_directories(f.dir);
    std::optional<Held> held;
    held.emplace(f.dir, ".replace.lock");  // all are as far as the draft before one may go on
    std::vector<std::thread> threads;
    std::atomic<int> refused = 0, done = 0;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&, i] {
        try {
          import_entry(files[static_cast<size_t>(i) % 3], f.dir);
          ++done;
        } catch (const Error& error) {
          refused += error.code() == ErrorCode::invalid_input;
        }
      });
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (f.files(".tmp") < 6 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(f.files(), 0u);
    held.reset();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(f.files(), 1u);
    EXPECT_EQ(f.files(".tmp"), 0u);
    EXPECT_EQ(done + refused, 6);
    EXPECT_GE(refused, 2);
  }
}

// What was imported behind the back of an open store is replaced by what it saves under that name.
TEST(DiskStore, SavingReplacesWhatWasImportedMeanwhile) {
  Fixture f, from;
  TestRow there = from.computed(counting(0, 12));
  DiskStore source(from.options());
  source.save("talk", "", there.tokens, there.sequence, "{}");
  DiskStore store(f.options());
  import_entry(source.entries()[0].path, f.dir);
  TestRow row = f.computed(counting(0, 20));
  store.save("talk", "", row.tokens, row.sequence, "{}");
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(DiskStore(f.options()).load("talk", "", f.cache).tokens, row.tokens);
}

// A model's folder that was moved to another disk is one for all: for chat and for `kvasir kv`.
TEST(DiskStore, AFolderBehindALinkIsSeenByAll) {
  Fixture f;
  TestFolder elsewhere("moved");
  TestRow row = f.computed(counting(0, 12));
  fs::path folder;
  {
    DiskStore store(f.options());
    store.save("talk", "", row.tokens, row.sequence, "{}");
    folder = store.entries()[0].path.parent_path().parent_path();
  }
  fs::rename(folder, elsewhere.path() / "there");
  fs::create_directory_symlink(elsewhere.path() / "there", folder);
  EXPECT_EQ(DiskStore(f.options()).load("talk", "", f.cache).tokens, row.tokens);
  ASSERT_EQ(verify_store(f.dir).size(), 1u);
  EXPECT_EQ(verify_store(f.dir)[0].error, "");
  flip_byte(verify_store(f.dir)[0].path, 5);
  EXPECT_NE(verify_store(f.dir)[0].error, "");
  // No other link is followed.
  fs::create_directory_symlink("/", f.dir / "root");
  EXPECT_EQ(verify_store(f.dir).size(), 1u);
}

TEST(DiskStore, RemovesItsOwnDraftsOnly) {
  Fixture f;
  TestRow row = f.computed(counting(0, 9));
  DiskStore(f.options()).put("", row.tokens, row.sequence);
  const fs::path folder = DiskStore(f.options()).entries()[0].path.parent_path();
  const std::string digits(32, '7');
  const auto make = [&](const std::string& name) {
    std::ofstream(folder / name) << "x";
    return folder / name;
  };
  const std::vector<fs::path> ours = {make(digits + ".kvk.123.tmp"), make("saved-" + digits + ".kvk.4.tmp")};
  const std::vector<fs::path> others = {make("notes.kvk.tmp"),           make("my.kvk.123.tmp"),
                                        make(digits + ".kvk.tmp"),       make(digits + ".kvk.12a.tmp"),
                                        make(digits + "0.kvk.123.tmp"),  make("x.tmp"),
                                        make("saved-" + digits + ".tmp")};
  DiskStore again(f.options());
  for (const fs::path& path : ours) EXPECT_FALSE(fs::exists(path)) << path;
  for (const fs::path& path : others) EXPECT_TRUE(fs::exists(path)) << path;
}

}  // namespace
}  // namespace kvasir::kv
