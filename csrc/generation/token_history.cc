#include "generation/token_history.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/error.h"

namespace fusewire {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

bool TokenRules::looks_back() const {
  return counts_tokens || ngrams || source_ngrams || !bad_words.empty();
}

int64_t TokenRules::reach() const {
  int64_t most = 0;
  for (const std::vector<int32_t>& word : bad_words) {
    most = std::max(most, static_cast<int64_t>(word.size()) - 1);
  }
  for (const std::optional<NGrams>* each : {&ngrams, &source_ngrams}) {
    if (*each) most = std::max(most, (*each)->keys().length());
  }
  return most;
}

TokenHistories::TokenHistories(std::shared_ptr<const TokenRules> rules) : rules_(std::move(rules)) {
  if (!rules_->looks_back()) return;
  texts_.resize(1);
  texts_[0].tokens = rules_->prompt_end;
  add_key(texts_[0]);
}

void TokenHistories::advance(const int32_t* parents, const int64_t* tokens, int64_t rows) {
  std::vector<int32_t> children(static_cast<size_t>(rows_));
  for (int64_t i = 0; i < rows; ++i) {
    if (parents[i] < 0 || parents[i] >= rows_) {
      fail("TokenHistories: parents: got ", parents[i], ", wanted 0 to ", rows_ - 1,
           ", a row of the step before");
    }
    ++children[static_cast<size_t>(parents[i])];
  }
  rows_ = rows;
  ++length_;
  penalized_.clear();
  if (!rules_->looks_back()) return;
  std::vector<Text> next;
  next.reserve(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    const auto parent = static_cast<size_t>(parents[i]);
    if (--children[parent] == 0) {  // its last child
      next.push_back(std::move(texts_[parent]));
    } else {
      next.push_back(texts_[parent]);
    }
    append(next.back(), static_cast<int32_t>(tokens[i]));
  }
  texts_ = std::move(next);
}

void TokenHistories::penalize_once(std::vector<int32_t> tokens, float penalty) {
  penalized_ = std::move(tokens);
  penalty_ = penalty;
}

void TokenHistories::append(Text& text, int32_t token) const {
  text.tokens.push_back(token);
  add_key(text);
  if (!rules_->counts_tokens) return;
  auto at = std::lower_bound(text.counts.begin(), text.counts.end(), token,
                             [](const Count& each, int32_t wanted) { return each.token < wanted; });
  if (at == text.counts.end() || at->token != token) {
    const std::vector<int32_t>& prompt = rules_->counted_prompt;
    const auto found = std::lower_bound(prompt.begin(), prompt.end(), token);
    const bool there = found != prompt.end() && *found == token;
    at = text.counts.insert(at, {token, 0, there ? found - prompt.begin() : -1});
  }
  ++at->count;
}

void TokenHistories::add_key(Text& text) const {
  if (!rules_->ngrams) return;
  const GramKeys& keys = rules_->ngrams->keys();
  const auto size = static_cast<int64_t>(text.tokens.size());
  const int32_t* end = text.tokens.data() + size;
  if (size < keys.length()) {
    text.keys.push_back(0);  // too few tokens: unused
  } else if (text.keys.empty() || size == keys.length()) {
    text.keys.push_back(keys.of(end));
  } else {
    text.keys.push_back(keys.next(text.keys.back(), end - 1));
  }
}

// Appends the tokens that followed earlier occurrences of the last n - 1 tokens, after the prompt.
void TokenHistories::repeated(const Text& text, std::vector<int32_t>& banned) const {
  const int64_t length = rules_->ngrams->keys().length();
  const auto begin = static_cast<int64_t>(rules_->prompt_end.size());
  const auto size = static_cast<int64_t>(text.tokens.size());
  const int32_t* tokens = text.tokens.data();
  const uint64_t last = text.keys.back();
  for (int64_t place = std::max(begin, length); place < size; ++place) {
    if (text.keys[static_cast<size_t>(place - begin)] == last &&
        std::equal(tokens + place - length, tokens + place, tokens + size - length)) {
      banned.push_back(tokens[place]);
    }
  }
}

std::vector<int32_t> TokenHistories::banned(const Text& text) const {
  std::vector<int32_t> banned;
  const auto size = static_cast<int64_t>(text.tokens.size());
  const int32_t* end = text.tokens.data() + size;
  if (rules_->ngrams) {
    rules_->ngrams->followers(end, size, banned);
    repeated(text, banned);
  }
  if (rules_->source_ngrams) rules_->source_ngrams->followers(end, size, banned);
  for (const std::vector<int32_t>& word : rules_->bad_words) {
    const auto before = static_cast<int64_t>(word.size()) - 1;
    if (before <= size && std::equal(word.begin(), word.end() - 1, end - before)) {
      banned.push_back(word.back());
    }
  }
  return banned;
}

std::vector<std::pair<int32_t, float>> TokenHistories::biases_of_step() const {
  if (penalized_.empty()) return rules_->biases;
  std::map<int32_t, float> biases(rules_->biases.begin(), rules_->biases.end());
  std::map<int32_t, int> times;
  for (const int32_t token : penalized_) ++times[token];
  for (const auto& [token, count] : times) {
    biases[token] -= penalty_ * static_cast<float>(count);
  }
  return {biases.begin(), biases.end()};
}

void TokenHistories::biases(int32_t first, TokenBiases& out) const {
  std::vector<int32_t> always;
  const auto forbid = [&always](const std::vector<int32_t>& tokens) {
    always.insert(always.end(), tokens.begin(), tokens.end());
  };
  if (length_ < rules_->min_new_tokens) forbid(rules_->stop_token_ids);
  if (length_ == rules_->begin) forbid(rules_->begin_suppress_tokens);
  const std::vector<std::pair<int32_t, float>> of_step = biases_of_step();
  const auto add = [&out](int32_t row, int32_t token, float value) {
    out.rows.push_back(row);
    out.tokens.push_back(token);
    out.values.push_back(value);
  };
  for (int64_t i = 0; i < rows_; ++i) {
    const int32_t row = first + static_cast<int32_t>(i);
    std::vector<int32_t> none;
    if (!texts_.empty()) none = banned(texts_[static_cast<size_t>(i)]);
    none.insert(none.end(), always.begin(), always.end());
    std::sort(none.begin(), none.end());
    none.erase(std::unique(none.begin(), none.end()), none.end());
    for (const int32_t token : none) add(row, token, kForbidden);
    for (const auto& [token, value] : of_step) {
      if (!std::binary_search(none.begin(), none.end(), token)) add(row, token, value);
    }
  }
}

void TokenHistories::seen(SeenTokens& out) const {
  for (int64_t i = 0; i < rows_; ++i) {
    if (rules_->counts_tokens) {
      const auto begin = out.tokens.size();
      const std::vector<int32_t>& prompt = rules_->counted_prompt;
      out.tokens.insert(out.tokens.end(), prompt.begin(), prompt.end());
      out.counts.resize(out.tokens.size());
      for (const Count& each : texts_[static_cast<size_t>(i)].counts) {
        if (each.place >= 0) {
          out.counts[begin + static_cast<size_t>(each.place)] = each.count;
        } else {
          out.tokens.push_back(each.token);
          out.counts.push_back(each.count);
        }
      }
    }
    out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
  }
}

}  // namespace fusewire
