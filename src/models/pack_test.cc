// Packed files: the same bits as packing in memory, and a refusal by name of everything that is not that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/test_folder.h"
#include "formats/pack_file.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Pack : public testing::Test {
 protected:
  static LoadOptions options(PackChoice pack = {}) {
    LoadOptions options = small_options(Activations::automatic, 2);
    options.pack = std::move(pack);
    return options;
  }

  fs::path model(const std::string& format, uint64_t seed = 1) const {
    const bool gguf = format.starts_with("gguf");
    const fs::path file = path_ / (format + std::to_string(seed) + (gguf ? ".gguf" : ""));
    synthesize(synth_config("qwen3", "tiny"), synth_format(format), seed, file);
    return file;
  }

  // Changes one byte of a file, counted from its end where negative.
  static void flip(const fs::path& file, int64_t at) {
    const auto size = static_cast<int64_t>(fs::file_size(file));
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at < 0 ? size + at : at);
    const auto byte = static_cast<char>(stream.get() ^ 0x40);
    stream.seekp(at < 0 ? size + at : at);
    stream.put(byte);
  }

  static std::string refusal(const fs::path& file, const LoadOptions& how) {
    try {
      Model::load(file, how);
    } catch (const Error& error) {
      return fmt::format("[{}] {}", name(error.code()), error.what());
    }
    return "loaded";
  }

  static std::vector<std::vector<float>> logits(Model& model) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % static_cast<int32_t>(model.info().vocab));
    TestRunner runner(model, 2, 64);
    return runner.run(ids, 8);
  }

  const TestFolder temporary_{"pack"};
  const fs::path& path_ = temporary_.path();
};

TEST_F(Pack, MappedWeightsGiveTheSameBitsKeyAndLedger) {
  for (const char* format : {"gguf-q4_0", "gguf-q4_1", "mlx-affine-4-32", "mlx-nvfp4", "bf16", "f32"}) {
    const fs::path file = model(format), packed = path_ / (std::string(format) + ".kpack");
    const size_t bytes = Model::write_pack(file, options(), packed);
    EXPECT_EQ(bytes, fs::file_size(packed));
    auto plain = Model::load(file, options());
    EXPECT_EQ(plain->memory().pack_file, "");
    MemoryLedger ledger;
    LoadOptions how = options({PackChoice::Use::file, packed});
    how.ledger = &ledger;
    const MemoryPlan plan = Model::plan(file, how);
    EXPECT_EQ(plan.pack_file, packed.string());
    auto mapped = Model::load(file, how);
    EXPECT_EQ(mapped->memory().pack_file, packed.string());
    EXPECT_EQ(ledger.bytes(MemoryCategory::weights), plan.weights_bytes);
    EXPECT_EQ(mapped->numerics_key().hex(), plain->numerics_key().hex()) << format;
    EXPECT_EQ(logits(*mapped), logits(*plain)) << format;
    mapped.reset();
    EXPECT_EQ(ledger.bytes(MemoryCategory::weights), 0u);
  }
}

TEST_F(Pack, AutomaticTakesTheFileBesideTheModelAndSaysWhenItDoesNotMatch) {
  const fs::path file = model("gguf-q4_0"), folder = model("f32");
  EXPECT_EQ(default_pack_path(file), fs::path(file.string() + ".kpack"));
  EXPECT_EQ(default_pack_path(folder), folder / "kvasir.kpack");
  std::vector<std::string> notes;
  LoadOptions how = options({PackChoice::Use::automatic, {}});
  how.note = [&](const std::string& note) { notes.push_back(note); };
  EXPECT_EQ(Model::load(file, how)->memory().pack_file, "");  // none there: nothing to say
  EXPECT_TRUE(notes.empty());
  for (const fs::path& path : {file, folder}) {
    Model::write_pack(path, options(), default_pack_path(path));
    EXPECT_EQ(Model::load(path, how)->memory().pack_file, default_pack_path(path).string());
  }
  EXPECT_TRUE(notes.empty());

  const auto expected = logits(*Model::load(file, options()));
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
  auto model = Model::load(file, how);
  EXPECT_EQ(model->memory().pack_file, "");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("before it changed"));
  EXPECT_THAT(notes[0], HasSubstr("packed in memory"));
  EXPECT_EQ(logits(*model), expected);
}

// A plan reads no weights, so what is wrong with them is found while they are mapped: the same note, the same
// packing in memory, the same bits, key and ledger.
TEST_F(Pack, AutomaticPacksInMemoryWhereTheFileIsDamaged) {
  for (const char* format : {"gguf-q4_0", "mlx-affine-4-32"}) {
    const fs::path file = model(format), packed = default_pack_path(file);
    Model::write_pack(file, options(), packed);
    const std::string good = read_file(packed, size_t{1} << 30);
    const formats::PackFile pack = formats::PackFile::open(packed);
    const auto size = static_cast<int64_t>(good.size());
    const auto data = size - static_cast<int64_t>(pack.data().size());
    auto plain = Model::load(file, options());
    const auto expected = logits(*plain);
    // The first weight, one between, the last byte; the header's checksum; an entry of another name.
    const auto middle = data + static_cast<int64_t>(pack.contents().entries[5].offset);
    for (const int64_t at : {data, middle, size - 1, int64_t{70}}) {
      write_file_atomically(packed, good);
      flip(packed, at);
      std::vector<std::string> notes;
      std::vector<size_t> done;
      MemoryLedger ledger;
      LoadOptions how = options({PackChoice::Use::automatic, {}});
      how.note = [&](const std::string& note) { notes.push_back(note); };
      how.ledger = &ledger;
      auto model = Model::load(file, how);
      ASSERT_EQ(notes.size(), 1u) << format << " at " << at;
      EXPECT_THAT(notes[0], HasSubstr(packed.string() + ": damaged packed model"));
      EXPECT_THAT(notes[0], HasSubstr("(weights are packed in memory)"));
      EXPECT_EQ(model->memory().pack_file, "");
      EXPECT_EQ(ledger.bytes(MemoryCategory::weights), model->memory().weights_bytes);
      EXPECT_EQ(model->numerics_key().hex(), plain->numerics_key().hex());
      EXPECT_EQ(logits(*model), expected) << format << " at " << at;
      model.reset();
      EXPECT_EQ(ledger.bytes(MemoryCategory::weights), 0u);
    }
    // An entry that is not the model's, in a file whose checksums are all right.
    formats::PackContents contents = pack.contents();
    contents.entries[1].name += "x";
    formats::write_pack_file(packed, contents, pack.data());
    LoadOptions how = options({PackChoice::Use::automatic, {}});
    std::string note;
    how.note = [&](const std::string& text) { note = text; };
    EXPECT_EQ(logits(*Model::load(file, how)), expected);
    EXPECT_THAT(note, HasSubstr("entry 1 is not"));
  }
}

// A cancelled load is not taken for a damaged file.
TEST_F(Pack, CancellingIsNotDamage) {
  const fs::path file = model("gguf-q4_0");
  Model::write_pack(file, options(), default_pack_path(file));
  LoadOptions how = options({PackChoice::Use::automatic, {}});
  how.progress = [](size_t, size_t) { return false; };
  EXPECT_THAT(refusal(file, how), HasSubstr("[cancelled]"));
}

// Memory for one weight at a time, whatever the family asks for.
TEST_F(Pack, PackingTakesTheMemoryOfTheLargestWeight) {
  for (const std::string& family : synth_families()) {
    const fs::path folder = path_ / family, packed = path_ / (family + ".kpack");
    synthesize(synth_config(family, "tiny"), synth_format("bf16"), 3, folder);
    MemoryLedger ledger;
    LoadOptions how = options();
    how.ledger = &ledger;
    const MemoryPlan plan = Model::plan(folder, options());
    EXPECT_LT(plan.largest_weight_bytes, plan.weights_bytes / 2) << family;
    Model::write_pack(folder, how, packed);
    EXPECT_EQ(ledger.high_water(MemoryCategory::weights), plan.largest_weight_bytes) << family;
    EXPECT_EQ(ledger.bytes(MemoryCategory::weights), 0u) << family;
    EXPECT_EQ(logits(*Model::load(folder, options({PackChoice::Use::file, packed}))),
              logits(*Model::load(folder, options())))
        << family;
  }
}

TEST_F(Pack, APipeIsRefused) {
  const fs::path file = model("gguf-q4_0"), pipe = path_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  try {
    Model::write_pack(file, options(), pipe);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a device or a pipe"));
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(Pack, AFileThatWasAskedForIsThatModelOrAnError) {
  const fs::path file = model("gguf-q4_0", 1), other = model("gguf-q4_0", 2), packed = path_ / "a.kpack";
  Model::write_pack(file, options(), packed);
  const LoadOptions how = options({PackChoice::Use::file, packed});
  EXPECT_EQ(refusal(file, how), "loaded");
  EXPECT_THAT(refusal(other, how),
              HasSubstr("[invalid_input] " + packed.string() + ": packed from another model"));
  EXPECT_THAT(refusal(file, options({PackChoice::Use::file, path_ / "absent"})), HasSubstr("[not_found]"));
  EXPECT_THAT(refusal(file, options({PackChoice::Use::file, file})),
              HasSubstr("[corrupt_file] " + file.string() + ": no packed model"));
}

TEST_F(Pack, DamageIsFoundWhereverItIs) {
  const fs::path file = model("gguf-q4_0"), good = path_ / "good.kpack", bad = path_ / "bad.kpack";
  Model::write_pack(file, options(), good);
  const formats::PackFile pack = formats::PackFile::open(good);
  const auto size = static_cast<int64_t>(fs::file_size(good));
  const auto data = size - static_cast<int64_t>(pack.data().size());
  const LoadOptions how = options({PackChoice::Use::file, bad});
  const auto with = [&](auto&& change) {
    fs::copy_file(good, bad, fs::copy_options::overwrite_existing);
    change();
    return refusal(file, how);
  };
  EXPECT_EQ(with([] {}), "loaded");
  EXPECT_THAT(with([&] { flip(bad, 0); }), HasSubstr("no packed model"));
  EXPECT_THAT(with([&] { flip(bad, 8); }), HasSubstr("[unsupported]"));
  EXPECT_THAT(with([&] { flip(bad, 70); }), HasSubstr("checksum"));
  for (const int64_t at : {data, data + 4096, size - 1})
    EXPECT_THAT(with([&] { flip(bad, at); }), HasSubstr("do not match their checksum")) << at;
  // Every entry is checked, vectors too.
  for (const formats::PackEntry& entry : pack.contents().entries) {
    const std::string error = with([&] { flip(bad, data + static_cast<int64_t>(entry.offset)); });
    EXPECT_THAT(error, HasSubstr("the bytes of " + printable(entry.name))) << entry.name;
  }
  for (const int64_t length : {int64_t{0}, int64_t{5}, int64_t{60}, data - 1, data, size - 1})
    EXPECT_THAT(with([&] { fs::resize_file(bad, static_cast<uintmax_t>(length)); }),
                HasSubstr("[corrupt_file]"))
        << length;
  EXPECT_THAT(with([&] { fs::resize_file(bad, static_cast<uintmax_t>(size + 1)); }),
              HasSubstr("[corrupt_file]"));
}

TEST_F(Pack, EntriesMustBeTheModels) {
  const fs::path file = model("gguf-q4_0"), good = path_ / "good.kpack", bad = path_ / "bad.kpack";
  Model::write_pack(file, options(), good);
  const formats::PackFile pack = formats::PackFile::open(good);
  const auto with = [&](auto&& change) {
    formats::PackContents contents = pack.contents();
    change(contents);
    formats::write_pack_file(bad, contents, pack.data());
    return refusal(file, options({PackChoice::Use::file, bad}));
  };
  EXPECT_EQ(with([](formats::PackContents&) {}), "loaded");
  EXPECT_THAT(with([](formats::PackContents& c) { c.entries[1].name += "x"; }), HasSubstr("entry 1 is not"));
  EXPECT_THAT(with([](formats::PackContents& c) { ++c.layout_version; }), HasSubstr("[unsupported]"));
  EXPECT_THAT(with([](formats::PackContents& c) { c.source[3] ^= 1; }), HasSubstr("another model"));
  EXPECT_THAT(with([](formats::PackContents& c) { c.entries[2].offset += 64; }),
              HasSubstr("outside the data"));
  EXPECT_THAT(with([](formats::PackContents& c) { c.entries.pop_back(); }),
              HasSubstr("do not fill the file"));
}

TEST(PackChoice, Names) {
  EXPECT_EQ(pack_choice("off").use, PackChoice::Use::off);
  EXPECT_EQ(pack_choice("auto").use, PackChoice::Use::automatic);
  EXPECT_EQ(pack_choice("a.kpack").file, fs::path("a.kpack"));
  EXPECT_THROW(pack_choice(""), Error);
}

}  // namespace
}  // namespace kvasir::models
