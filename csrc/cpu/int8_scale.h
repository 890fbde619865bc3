// Symmetric rounding to 8 bits: number = scale * integer, where 127 stands for the largest
// magnitude of a row.
#pragma once

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kGroup = 4;  // neighbours in k that lie together
constexpr float kLargestInt8 = 127.0f;

FUSEWIRE_INLINE int64_t groups_of(int64_t k) {
  return (k + kGroup - 1) / kGroup;
}

FUSEWIRE_INLINE IntVec magnitude_bits(Vec v) {
  return reinterpret_cast<const IntVec&>(v) & 0x7fffffff;
}

// The largest magnitude of numbers, of whose bits less the sign this is the largest: bits of
// infinities and NaN are above those of all numbers.
FUSEWIRE_INLINE float scale_of(int32_t largest_bits) {
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  constexpr int32_t kInfinityBits = 0x7f800000;
  if (largest_bits >= kInfinityBits) return __builtin_nanf("");
  // Smaller ones would have scales that are no normal numbers, or infinite reciprocals.
  constexpr float kSmallest = kLargestInt8 * __FLT_MIN__;
  return largest < kSmallest ? 0.0f : largest / kLargestInt8;
}

}  // namespace fusewire::FUSEWIRE_TARGET
