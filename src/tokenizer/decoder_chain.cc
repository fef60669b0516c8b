#include "tokenizer/decoder_chain.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty() || text.find(from) == std::string::npos) return;
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = out.append(text, done);
}

void rewrite_each(const DecodeStep& step, std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) step.rewrite(tokens[i], i == 0);
}

}  // namespace

void clean_up(std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

bool DecodeStep::rewrite(std::string&, bool) const {
  return false;
}

void FuseStep::apply(std::vector<std::string>& tokens) const {
  std::string all;
  for (const std::string& t : tokens) all += t;
  tokens.assign(1, all);
}

void ByteLevelStep::apply(std::vector<std::string>& tokens) const {
  std::string bytes;
  for (const std::string& t : tokens) {
    if (!append_from_alphabet(bytes, t)) bytes += t;
  }
  tokens.assign(1, is_valid_utf8(bytes) ? std::move(bytes) : replace_invalid(bytes));
}

void ByteFallbackStep::apply(std::vector<std::string>& tokens) const {
  std::vector<std::string> out;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (is_valid_utf8(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& t : tokens) {
    const int byte = byte_of_token(t, true);
    if (byte >= 0) {
      run.push_back(static_cast<char>(byte));
    } else {
      end_run();
      out.push_back(std::move(t));
    }
  }
  end_run();
  tokens.swap(out);
}

void ReplaceStep::apply(std::vector<std::string>& tokens) const {
  rewrite_each(*this, tokens);
}

bool ReplaceStep::rewrite(std::string& token, bool) const {
  if (!regex_) {
    replace_all(token, literal_, content_);
    return true;
  }
  std::vector<Regex::Match> matches;
  regex_->find_all(token, matches);
  std::string out;
  size_t done = 0;
  for (const Regex::Match& m : matches) {
    out.append(token, done, m.begin - done).append(content_);
    done = m.end;
  }
  token = out.append(token, done);
  return true;
}

void StripStep::apply(std::vector<std::string>& tokens) const {
  rewrite_each(*this, tokens);
}

bool StripStep::rewrite(std::string& token, bool) const {
  if (content_.empty()) return true;
  size_t begin = 0, end = token.size();
  for (size_t n = 0; n < start_ && token.compare(begin, content_.size(), content_) == 0; ++n)
    begin += content_.size();
  for (size_t n = 0; n < stop_ && end >= begin + content_.size() &&
                     token.compare(end - content_.size(), content_.size(), content_) == 0;
       ++n) {
    end -= content_.size();
  }
  token = token.substr(begin, end - begin);
  return true;
}

void MetaspaceStep::apply(std::vector<std::string>& tokens) const {
  rewrite_each(*this, tokens);
}

bool MetaspaceStep::rewrite(std::string& token, bool first) const {
  replace_all(token, replacement_, first && prepended_ ? "" : " ");
  return true;
}

void WordPieceStep::apply(std::vector<std::string>& tokens) const {
  rewrite_each(*this, tokens);
}

bool WordPieceStep::rewrite(std::string& token, bool first) const {
  if (!first) {
    if (token.starts_with(prefix_)) {
      token.erase(0, prefix_.size());
    } else {
      token.insert(0, " ");
    }
  }
  if (cleanup_) clean_up(token);
  return true;
}

void BpeStep::apply(std::vector<std::string>& tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i)
    replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
}

void CtcStep::apply(std::vector<std::string>& tokens) const {
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (std::string& t : tokens) {
    replace_all(t, pad_, "");
    if (cleanup_) {
      clean_up(t);
      replace_all(t, delimiter_, " ");
    }
  }
  std::erase(tokens, std::string());
}

// A chain can be streamed without looking back when it is ByteLevel alone, or steps on single tokens, then
// perhaps ByteFallback, then perhaps Fuse and a Strip of leading spaces.
ChainDecoder::ChainDecoder(std::vector<std::unique_ptr<DecodeStep>> steps) : steps_(std::move(steps)) {
  if (steps_.size() == 1 && dynamic_cast<const ByteLevelStep*>(steps_[0].get())) {
    rule_.kind = StreamRule::Kind::bytes;
    return;
  }
  size_t i = 0;
  std::string probe;
  while (i < steps_.size() && steps_[i]->rewrite(probe, true)) ++i;
  rewriting_steps_ = i;
  if (i < steps_.size() && dynamic_cast<const ByteFallbackStep*>(steps_[i].get())) {
    raw_bytes_ = true;
    ++i;
  }
  if (i < steps_.size() && dynamic_cast<const FuseStep*>(steps_[i].get())) {
    ++i;
    const auto* strip = i < steps_.size() ? dynamic_cast<const StripStep*>(steps_[i].get()) : nullptr;
    if (strip && strip->leading_spaces()) {
      rule_.strip_spaces = *strip->leading_spaces();
      ++i;
    }
  }
  if (i == steps_.size()) {
    rule_.kind = StreamRule::Kind::pieces;
    rule_.poisoned_runs = true;
  } else {
    rule_ = {};
  }
}

std::string ChainDecoder::decode(std::span<const DecodeToken> tokens) const {
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const DecodeToken& t : tokens) texts.emplace_back(t.text);
  for (const auto& step : steps_) step->apply(texts);
  std::string out;
  for (const std::string& t : texts) out += t;
  return is_valid_utf8(out) ? out : replace_invalid(out);
}

bool ChainDecoder::append_token(const DecodeToken& token, bool first, std::string& out) const {
  if (rule_.kind == StreamRule::Kind::bytes) {
    if (!append_from_alphabet(out, token.text)) out += token.text;
    return false;
  }
  std::string text(token.text);
  for (size_t i = 0; i < rewriting_steps_; ++i) steps_[i]->rewrite(text, first);
  const int byte = raw_bytes_ ? byte_of_token(text, true) : -1;
  if (byte >= 0) {
    out.push_back(static_cast<char>(byte));
    return true;
  }
  out += text;
  return false;
}

}  // namespace kvasir::tokenizer
