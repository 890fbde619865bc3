// Symmetric quantisation to 8 bits: x = scale * integer, where 127 represents the largest magnitude
// of a row.
#pragma once

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kGroup = 4;  // adjacent elements in k that are contiguous
constexpr float kLargestInt8 = 127.0f;

FUSEWIRE_INLINE int64_t groups_of(int64_t k) {
  return (k + kGroup - 1) / kGroup;
}

FUSEWIRE_INLINE IntVec magnitude_bits(Vec v) {
  return reinterpret_cast<const IntVec&>(v) & 0x7fffffff;
}

// Returns the scale of elements whose largest magnitude has these bits, without the sign; NaN if
// one of them is not finite: bits of infinities and NaN are above those of all other numbers.
FUSEWIRE_INLINE float scale_of(int32_t largest_bits) {
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  constexpr int32_t kInfinityBits = 0x7f800000;
  if (largest_bits >= kInfinityBits) return __builtin_nanf("");
  // Smaller magnitudes would have subnormal scales, or infinite reciprocals.
  constexpr float kSmallest = kLargestInt8 * __FLT_MIN__;
  return largest < kSmallest ? 0.0f : largest / kLargestInt8;
}

}  // namespace fusewire::FUSEWIRE_TARGET
