// What the tokens of a text so far say of the next one: bans of n-grams and words, and what
// penalties count. Semantics are those of transformers' logits processors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "generation/ngrams.h"

namespace fusewire {

// What a request asks for; its texts share it.
struct TokenRules {
  std::vector<std::pair<int32_t, float>> biases;  // of every step, by token, each token once
  std::vector<int32_t> stop_token_ids;            // forbidden in front of min_new_tokens
  int64_t min_new_tokens = 0;
  std::vector<int32_t> begin_suppress_tokens;  // forbidden behind `begin` new tokens
  int64_t begin = 0;
  std::vector<std::vector<int32_t>> bad_words;  // each of 2 tokens or more
  std::optional<NGrams> ngrams;                 // of the prompt: none comes again
  std::optional<NGrams> source_ngrams;          // of what an encoder reads: none is written
  bool counts_tokens = false;
  std::vector<int32_t> counted_prompt;  // tokens of the prompt that count as seen, ascending
  std::vector<int32_t> prompt_end;      // as many tokens as n-grams and words look back

  // Whether it matters which tokens were generated, and not only how many.
  bool looks_back() const;
  // Tokens in front of a text that are looked at; before prompt_end is set.
  int64_t reach() const;
};

// What is added to logits, each token of a row once; -inf where it is forbidden.
struct TokenBiases {
  std::vector<int32_t> rows, tokens;
  std::vector<float> values;
};

// Tokens that penalties concern and how often each was generated: of row i those from offsets[i] to
// offsets[i + 1].
struct SeenTokens {
  std::vector<int32_t> offsets{0}, tokens, counts;
};

// The texts of one request that go on together, a row each: one, or those of beams.
class TokenHistories {
 public:
  // One text, without a new token.
  explicit TokenHistories(std::shared_ptr<const TokenRules> rules);

  int64_t rows() const { return rows_; }
  int64_t length() const { return length_; }  // new tokens of each row

  // Row i becomes the row parents[i] and tokens[i] behind it.
  void advance(const int32_t* parents, const int64_t* tokens, int64_t rows);
  // Subtracts `penalty` in the coming step for each of `tokens`, once for each time it is there.
  void penalize_once(std::vector<int32_t> tokens, float penalty);

  // What is said of the next token of each row; rows are counted from `first`.
  void biases(int32_t first, TokenBiases& out) const;
  void seen(SeenTokens& out) const;

 private:
  struct Count {
    int32_t token, count;
    int64_t place;  // in counted_prompt; -1: not there
  };
  struct Text {
    std::vector<int32_t> tokens;  // prompt_end, then the new ones
    std::vector<uint64_t> keys;   // before each new token and the next one: of n - 1 tokens
    std::vector<Count> counts;    // by token
  };

  void append(Text& text, int32_t token) const;
  void add_key(Text& text) const;
  void repeated(const Text& text, std::vector<int32_t>& banned) const;
  std::vector<int32_t> banned(const Text& text) const;
  std::vector<std::pair<int32_t, float>> biases_of_step() const;

  std::shared_ptr<const TokenRules> rules_;
  std::vector<Text> texts_;  // empty where rules do not look back
  int64_t rows_ = 1;
  int64_t length_ = 0;
  std::vector<int32_t> penalized_;
  float penalty_ = 0.0f;
};

}  // namespace fusewire
