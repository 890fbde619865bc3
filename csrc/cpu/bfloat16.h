// bfloat16 numbers, two adjacent ones per 32-bit word: the first is the lower half, as in memory.
#pragma once

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

typedef uint32_t WordVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));
typedef uint32_t UnalignedWordVec
    __attribute__((vector_size(FUSEWIRE_VEC_BYTES), aligned(4), may_alias));

constexpr uint32_t kUpperHalf = 0xffff0000u;

FUSEWIRE_INLINE WordVec load_words(const uint32_t* p) {
  return *reinterpret_cast<const UnalignedWordVec*>(p);
}
FUSEWIRE_INLINE void store_words(uint32_t* p, WordVec v) {
  *reinterpret_cast<UnalignedWordVec*>(p) = v;
}

FUSEWIRE_INLINE WordVec bits_of(Vec v) {
  return reinterpret_cast<const WordVec&>(v);
}
FUSEWIRE_INLINE Vec floats_of(WordVec v) {
  return reinterpret_cast<const Vec&>(v);
}

// Returns words whose upper half is the number in bfloat16, rounded to nearest, ties to even;
// values beyond the largest become infinite. A NaN stays a NaN, though its lower bits are lost.
FUSEWIRE_INLINE WordVec rounded_to_bfloat16(Vec v) {
  constexpr uint32_t kQuiet = 0x00400000u;
  const WordVec bits = bits_of(v);
  const WordVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return v != v ? (bits | kQuiet) : rounded;
}

FUSEWIRE_INLINE WordVec paired(Vec first, Vec second) {
  return (rounded_to_bfloat16(first) >> 16) | (rounded_to_bfloat16(second) & kUpperHalf);
}

// Exact: fp32 represents every bfloat16 number.
FUSEWIRE_INLINE Vec first_of(WordVec pair) {
  return floats_of(pair << 16);
}
FUSEWIRE_INLINE Vec second_of(WordVec pair) {
  return floats_of(pair & kUpperHalf);
}

}  // namespace fusewire::FUSEWIRE_TARGET
