// The epilogue of a tile, applied while its sums are in registers: bias, activation, residual.
#pragma once

#include "core/gemm.h"
#include "cpu/micro_kernel.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kLine = 16;  // floats

// The epilogue of one tile; bias and residual point to its first column and its first element.
struct Epilogue {
  const float* bias;
  const float* residual;
  int64_t residual_stride;
  Activation activation;
};

FUSEWIRE_INLINE Epilogue epilogue_at(const GemmArguments& a, int64_t row, int64_t column) {
  return {a.bias ? static_cast<const float*>(a.bias) + column : nullptr,
          a.residual ? static_cast<const float*>(a.residual) + row * a.residual_stride + column
                     : nullptr,
          a.residual_stride, a.activation};
}

// Prefetches what `finish` reads and writes.
template <int kRows>
FUSEWIRE_INLINE void prefetch(const Epilogue& epilogue, const float* out, int64_t out_stride,
                              int64_t columns) {
  for (int r = 0; r < kRows; ++r) {
    for (int64_t column = 0; column < columns; column += kLine) {
      __builtin_prefetch(out + r * out_stride + column, 1, 2);
      if (epilogue.residual) {
        __builtin_prefetch(epilogue.residual + r * epilogue.residual_stride + column, 0, 3);
      }
    }
  }
}

// Applies the epilogue and writes up to kColumns columns of kRows rows.
template <int kRows>
FUSEWIRE_INLINE void finish(const Vec (&sum)[kRows][2], const Epilogue& epilogue, float* out,
                            int64_t out_stride, int64_t columns) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int64_t first = half * kLanes;
      const int64_t present = columns - first;
      if (present <= 0) continue;
      const bool whole = present >= kLanes;
      const auto read = [&](const float* p) { return whole ? load(p) : load_first(p, present); };
      Vec y = sum[r][half];
      if (epilogue.bias) y += read(epilogue.bias + first);
      y = activated(y, epilogue.activation);
      if (epilogue.residual) y += read(epilogue.residual + r * epilogue.residual_stride + first);
      float* to = out + r * out_stride + first;
      whole ? store(to, y) : store_first(to, y, present);
    }
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
