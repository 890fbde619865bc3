// Dropout masks (Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from
// overfitting"). No mask is stored: a backward pass computes it again.
//
// Element (row, column) has a 16-bit number from Philox4x32-7 (core/philox.h): with the key `seed`
// and the counter {column / 8, row, offset, offset >> 32}, Philox returns four words of two numbers
// each, the low half first, and the element has number column % 8 of these eight. The element is
// dropped if its number is less than `threshold`, otherwise multiplied by `factor`. So a mask
// depends on (seed, offset), row and column alone: never on threads, on the instruction set or on
// the width of the matrix.
//
// In attention, the row of the weight of a query and a key is (the query's token in the packed
// batch) * heads + head, and the column is the key's position in its sequence.
#pragma once

#include <cstdint>

namespace fusewire {

struct Dropout {
  float probability = 0;  // less than 1; rounded to a multiple of 2^-16; 0: none
  int64_t seed = 0, offset = 0;
  // Points to a number that kernels add to `seed`, or null. A captured graph reads it at every
  // replay, so that each replay can have a mask of its own.
  const int64_t* added = nullptr;

  constexpr uint64_t key() const {
    return static_cast<uint64_t>(seed) + (added ? static_cast<uint64_t>(*added) : 0);
  }

  // At most 65535, whatever the rounding: 65536 would drop every element.
  constexpr uint32_t threshold() const {
    const uint32_t nearest = static_cast<uint32_t>(probability * 65536.0f + 0.5f);
    return nearest < 65535 ? nearest : 65535;
  }
  constexpr float factor() const { return 1.0f / (1.0f - probability); }
};

inline constexpr int kDropoutGroup = 8;  // adjacent columns that share a counter
// The fewest with which the authors found no failure in BigCrush (Salmon et al. 2011, table 2). In
// attention every pass draws the mask of all pairs of tokens, so that rounds cost much there.
inline constexpr int kDropoutRounds = 7;

}  // namespace fusewire
