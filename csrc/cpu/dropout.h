// The random numbers of core/dropout.h for kLanes counters at once.
#pragma once

#include "core/dropout.h"
#include "cpu/philox.h"

namespace fusewire::FUSEWIRE_TARGET {

// Computes the four Philox words of each lane's row and group of kDropoutGroup columns.
FUSEWIRE_INLINE void dropout_words(const Dropout& dropout, UintVec row, UintVec group,
                                   UintVec (&x)[4]) {
  const uint64_t offset = static_cast<uint64_t>(dropout.offset);
  x[0] = group;
  x[1] = row;
  x[2] = UintVec{} + static_cast<uint32_t>(offset);
  x[3] = UintVec{} + static_cast<uint32_t>(offset >> 32);
  philox<kDropoutRounds>(dropout.key(), x);
}

// Calls body(column - first, factors) for `count` columns from `first` on, with rows of a matrix
// along the lanes; each factor is 0 or dropout.factor().
template <class Body>
FUSEWIRE_INLINE void for_dropout_columns(const Dropout& dropout, UintVec row, int64_t first,
                                         int64_t count, Body&& body) {
  const IntVec threshold = IntVec{} + static_cast<int32_t>(dropout.threshold());
  const Vec factor = broadcast(dropout.factor());
  for (int64_t group = first / kDropoutGroup; group * kDropoutGroup < first + count; ++group) {
    UintVec words[4];
    dropout_words(dropout, row, UintVec{} + static_cast<uint32_t>(group), words);
#pragma GCC unroll 8
    for (int i = 0; i < kDropoutGroup; ++i) {
      const int64_t column = group * kDropoutGroup + i - first;
      if (column < 0 || column >= count) continue;
      const UintVec number = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFF;
      body(column, reinterpret_cast<const IntVec&>(number) < threshold ? Vec{} : factor);
    }
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
