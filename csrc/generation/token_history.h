// What the previous tokens of a text imply for its next token: bans of n-grams and words, and the
// counts for penalties. The semantics are those of transformers' logits processors.
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
  std::vector<int32_t> stop_token_ids;            // forbidden before min_new_tokens
  int64_t min_new_tokens = 0;
  std::vector<int32_t> begin_suppress_tokens;  // forbidden after exactly `begin` new tokens
  int64_t begin = 0;
  std::vector<std::vector<int32_t>> bad_words;  // each of 2 tokens or more
  std::optional<NGrams> ngrams;                 // of the prompt: none may be repeated
  std::optional<NGrams> source_ngrams;          // of the encoder's input: none may be generated
  bool counts_tokens = false;
  std::vector<int32_t> counted_prompt;  // tokens of the prompt that count as seen, ascending
  std::vector<int32_t> prompt_end;      // the last tokens of the prompt, as many as n-grams and
                                        // words look back on

  // Returns whether it matters which tokens were generated, and not only how many.
  bool looks_back() const;
  // Returns the number of tokens before a new one that rules look at. Does not need prompt_end.
  int64_t reach() const;
};

// What is added to logits, each token of a row once; -inf if it is forbidden.
struct TokenBiases {
  std::vector<int32_t> rows, tokens;
  std::vector<float> values;
};

// The tokens that penalties concern and how often each was generated. Those of row i are offsets[i]
// to offsets[i + 1].
struct SeenTokens {
  std::vector<int32_t> offsets{0}, tokens, counts;
};

// The texts of one request that are generated together, one per row: a single one, or those of
// beams.
class TokenHistories {
 public:
  // Begins with one text, without new tokens.
  explicit TokenHistories(std::shared_ptr<const TokenRules> rules);

  int64_t rows() const { return rows_; }
  int64_t length() const { return length_; }  // new tokens of each row

  // Makes row i the row parents[i] followed by tokens[i].
  void advance(const int32_t* parents, const int64_t* tokens, int64_t rows);
  // Subtracts `penalty` in the next step for each of `tokens`, as often as it occurs.
  void penalize_once(std::vector<int32_t> tokens, float penalty);

  // Appends what applies to the next token of each row; rows are numbered from `first`.
  void biases(int32_t first, TokenBiases& out) const;
  void seen(SeenTokens& out) const;

 private:
  struct Count {
    int32_t token, count;
    int64_t place;  // index in counted_prompt; -1: not in it
  };
  struct Text {
    std::vector<int32_t> tokens;  // prompt_end, then the new tokens
    std::vector<uint64_t> keys;   // of the n - 1 tokens before each new token and the next one
    std::vector<Count> counts;    // sorted by token
  };

  void append(Text& text, int32_t token) const;
  void add_key(Text& text) const;
  void repeated(const Text& text, std::vector<int32_t>& banned) const;
  std::vector<int32_t> banned(const Text& text) const;
  std::vector<std::pair<int32_t, float>> biases_of_step() const;

  std::shared_ptr<const TokenRules> rules_;
  std::vector<Text> texts_;  // empty if the rules do not look back
  int64_t rows_ = 1;
  int64_t length_ = 0;
  std::vector<int32_t> penalized_;
  float penalty_ = 0.0f;
};

}  // namespace fusewire
