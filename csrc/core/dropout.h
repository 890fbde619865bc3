// Which elements of a matrix are dropped (Srivastava et al. 2014, "Dropout: a simple way to prevent
// neural networks from overfitting"). No mask is stored: a backward pass computes it again.
//
// Element (row, column) has 16 bits of Philox4x32-10 (core/philox.h): with the key `seed` and the
// counter {column / 8, row, offset, offset >> 32} it gives four words of two numbers each, the low
// half first, and the element has number column % 8 of these eight. It is dropped where the number
// is less than `threshold`, else multiplied by `factor`. So a mask depends on (seed, offset), row
// and column alone: never on threads, on an instruction set or on the width of the matrix.
//
// Of attention, the row of the weight of a query and a key is (the query's token in the packed
// batch) * heads + head, and the column the key's position in its sequence.
#pragma once

#include <cstdint>

namespace fusewire {

struct Dropout {
  float probability = 0;  // less than 1; rounded to a multiple of 2^-16; 0: none
  int64_t seed = 0, offset = 0;
  // Where kernels find a number that is added to `seed`, or null: a recorded graph reads it at
  // every replay, so each can have a mask of its own.
  const int64_t* added = nullptr;

  constexpr uint64_t key() const {
    return static_cast<uint64_t>(seed) + (added ? static_cast<uint64_t>(*added) : 0);
  }

  // Not 1 as a whole, whatever the rounding: 2^16 would drop everything.
  uint32_t threshold() const {
    const uint32_t nearest = static_cast<uint32_t>(probability * 65536.0f + 0.5f);
    return nearest < 65535 ? nearest : 65535;
  }
  float factor() const { return 1.0f / (1.0f - probability); }
};

inline constexpr int kDropoutGroup = 8;  // neighbouring columns that share a counter

}  // namespace fusewire
