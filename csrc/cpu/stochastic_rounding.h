// The random numbers of core/stochastic_rounding.h, kLanes at a time.
#pragma once

#include "core/stochastic_rounding.h"
#include "cpu/bfloat16.h"
#include "cpu/philox.h"

namespace fusewire::FUSEWIRE_TARGET {

typedef uint16_t HalfVec
    __attribute__((vector_size(FUSEWIRE_VEC_BYTES / 2), aligned(2), may_alias));

// Returns `count` 16-bit numbers in 32 bits; the other lanes are 0.
FUSEWIRE_INLINE WordVec widened(const uint16_t* p, int64_t count) {
  if (count == kLanes) {
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(p), WordVec);
  }
  WordVec v{};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}

// The 16-bit numbers by which elements are rounded (core/stochastic_rounding.h), kLanes groups of
// them at a time.
class RoundingNumbers {
 public:
  explicit RoundingNumbers(uint32_t step) : step_(step) {}

  // The numbers of the `count` elements from `at` on.
  FUSEWIRE_INLINE WordVec get(int64_t at, int64_t count) {
    if (at < begin_ || at + count > begin_ + kKept) make(at / kRoundingGroup);
    return widened(numbers_ + (at - begin_), count);
  }

 private:
  static constexpr int64_t kKept = kLanes * kRoundingGroup;

  void make(int64_t group) {
    begin_ = group * kRoundingGroup;
    uint32_t low[kLanes], high[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t own = static_cast<uint64_t>(group + lane);
      low[lane] = static_cast<uint32_t>(own);
      high[lane] = static_cast<uint32_t>(own >> 32);
    }
    UintVec words[4] = {load_words(low), load_words(high), UintVec{} + step_, UintVec{}};
    philox(kRoundingKey, words);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int word = 0; word < 4; ++word) {
        uint16_t* to = numbers_ + lane * kRoundingGroup + 2 * word;
        to[0] = static_cast<uint16_t>(words[word][lane]);
        to[1] = static_cast<uint16_t>(words[word][lane] >> 16);
      }
    }
  }

  uint32_t step_;
  int64_t begin_ = -kKept;
  uint16_t numbers_[kKept];
};

}  // namespace fusewire::FUSEWIRE_TARGET
