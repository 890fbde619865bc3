// Transposition of kLanes x kLanes floats in registers.
#pragma once

#include <utility>

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

template <int kStep, int... kLane>
FUSEWIRE_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, kLane...>) {
  const Vec low =
      __builtin_shufflevector(a, b, ((kLane & kStep) ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) ? kLanes + kLane : kLane + kStep)...);
  a = low;
}

// Transposes in place. The elements (row, column) and (column, row) differ in the bits where row
// and column differ; each step exchanges one bit of the two, for all elements at once.
template <int kStep = kLanes / 2>
FUSEWIRE_INLINE void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    if ((r & kStep) == 0) {
      exchange<kStep>(rows[r], rows[r + kStep], std::make_integer_sequence<int, kLanes>{});
    }
  }
  if constexpr (kStep > 1) transpose<kStep / 2>(rows);
}

// to[c * to_stride + r] = scale(from[r * from_stride + c]) for r < rows, c < columns, at most
// kLanes each; rows of `to` are written whole, with zeros from `rows` on.
template <class Scale>
FUSEWIRE_INLINE void transpose_block(float* to, int64_t to_stride, const float* from,
                                     int64_t from_stride, int64_t rows, int64_t columns,
                                     Scale&& scale) {
  Vec block[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    if (r >= rows) {
      block[r] = Vec{};
    } else if (columns >= kLanes) {
      block[r] = scale(load(from + r * from_stride));
    } else {
      block[r] = scale(load_first(from + r * from_stride, columns));
    }
  }
  transpose(block);
#pragma GCC unroll 16
  for (int c = 0; c < kLanes; ++c) {
    if (c < columns) store(to + c * to_stride, block[c]);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
