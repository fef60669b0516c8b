// The "normalizer" of a tokenizer.json: rewrites each stretch of text before it is cut.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/charsmap.h"
#include "tokenizer/normal_form.h"
#include "tokenizer/regex.h"

namespace kvasir::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text`: valid UTF-8, before and after.
  virtual void apply(std::string& text) const = 0;
  // The same; false where the first character vanished, so that what now comes first began later.
  virtual bool apply_keeping_start(std::string& text) const;
};

class NormalFormNormalizer final : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = normal_form(text, form_); }

 private:
  NormalForm form_;
};

// Every character by itself: no final-sigma rule; U+0130 becomes "i" and U+0307.
class LowercaseNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override;
  bool apply_keeping_start(std::string& text) const override;

 private:
  bool left_, right_;
};

class StripAccentsNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override;
};

// Control characters that vanish or become spaces, by a fixed list.
class NmtNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

// Every occurrence of a text or of a pattern becomes a text.
class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  ReplaceNormalizer(Regex regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}
  void apply(std::string& text) const override { apply_keeping_start(text); }
  bool apply_keeping_start(std::string& text) const override;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
  std::string content_;
};

class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(bool clean_text, bool chinese, bool strip_accents, bool lowercase)
      : clean_text_(clean_text), chinese_(chinese), strip_accents_(strip_accents), lowercase_(lowercase) {}
  void apply(std::string& text) const override;

 private:
  bool clean_text_, chinese_, strip_accents_, lowercase_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override;
};

class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap map) : map_(std::move(map)) {}
  void apply(std::string& text) const override;

 private:
  Charsmap map_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }
  bool apply_keeping_start(std::string& text) const override {
    bool kept = true;
    for (const auto& step : steps_) kept &= step->apply_keeping_start(text);
    return kept;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace kvasir::tokenizer
