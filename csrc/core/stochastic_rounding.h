// Rounding of new parameters to bfloat16: up with a probability that is the distance to the number
// below, so that the mean of many roundings is the number itself (Gupta et al. 2015, "Deep learning
// with limited numerical precision", section 3.1). Rounded to nearest, an update of less than 1/512
// of a parameter would be lost in every step.
//
// Element `at` of the step `step` has number at % 8 of the eight 16-bit numbers of Philox4x32-10
// (core/philox.h) with the counter {at / 8, at / 8 >> 32, step, 0}, the low half of a word first.
// The key is fixed: processes that make the same step round alike, and so does a run that is
// resumed.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace fusewire {

inline constexpr uint64_t kRoundingKey = 0x726f756e64696e67;
inline constexpr int kRoundingGroup = 8;  // adjacent elements that share a counter

static constexpr PhiloxWords rounding_words(int64_t at, uint32_t step) {
  const uint64_t group = static_cast<uint64_t>(at) / kRoundingGroup;
  return philox(kRoundingKey,
                {{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), step, 0}});
}

// The number of element `at` of its group's words.
static constexpr uint32_t rounding_number(const PhiloxWords& words, int64_t at) {
  const uint32_t word = words.x[at % kRoundingGroup / 2];
  return at % 2 ? word >> 16 : word & 0xffff;
}

inline constexpr uint32_t kQuietNan = 0x00400000;  // the bit of it that stays in bfloat16

// The bits of a float, rounded by a 16-bit number: the upper half is the bfloat16. NaN stays NaN.
static constexpr uint32_t stochastically_rounded(uint32_t bits, uint32_t number) {
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return nan ? bits | kQuietNan : bits + number;
}

}  // namespace fusewire
