// The n-grams of a text: which tokens followed each n - 1 tokens. They are looked up by a rolling
// hash (Karp and Rabin, 1987) and then compared, so that time and memory do not depend on n.
#pragma once

#include <cstdint>
#include <vector>

namespace fusewire {

// Hashes of `length` consecutive tokens.
class GramKeys {
 public:
  explicit GramKeys(int64_t length);

  int64_t length() const { return length_; }
  // Returns the key of the `length` tokens before `end`.
  uint64_t of(const int32_t* end) const;
  // Returns the key of the `length` tokens before end + 1, given that of those before `end`.
  uint64_t next(uint64_t key, const int32_t* end) const;

 private:
  int64_t length_;
  uint64_t oldest_;  // the weight of the first token
};

// All n-grams of a text that does not change.
class NGrams {
 public:
  // n is 1 or more.
  NGrams(std::vector<int32_t> text, int64_t n);

  const GramKeys& keys() const { return keys_; }
  // Appends the tokens that follow, anywhere in the text, the n - 1 tokens before `end`; none if
  // `before`, the number of tokens before `end`, is less than n - 1. A token may be appended more
  // than once.
  void followers(const int32_t* end, int64_t before, std::vector<int32_t>& out) const;

 private:
  struct Entry {
    uint64_t key;
    int32_t follower;
    int64_t place;  // index of the follower
  };

  bool same(const int32_t* one, const int32_t* other) const;

  GramKeys keys_;
  std::vector<int32_t> text_;
  std::vector<Entry> entries_;  // sorted by key, then by follower; of equal n-grams only the first
};

}  // namespace fusewire
