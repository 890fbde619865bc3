// The second operand of a product, packed in panels of 32 columns of the result, [n / 32][k][32],
// the same for every instruction set. Columns beyond n are zero.
#pragma once

#include "core/threads.h"
#include "cpu/transpose.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kPanel = 32;

inline int64_t panels_of(int64_t n) {
  return (n + kPanel - 1) / kPanel;
}

// Packs from [n, k]: a panel is a transposed strip of rows.
constexpr int64_t kAhead = 64;  // floats
inline void pack_rows(float* packed, const float* from, int64_t n, int64_t k) {
  parallel_for(panels_of(n), 1, [&](int64_t panel, int64_t, int) {
    float* to = packed + panel * kPanel * k;
    for (int64_t i = 0; i < k; i += kLanes) {
      for (int64_t j = 0; j < kPanel; j += kLanes) {
        const int64_t row = panel * kPanel + j;
        // These are more rows than the hardware prefetcher follows.
        for (int64_t r = row; r < row + kLanes && r < n; ++r) {
          __builtin_prefetch(from + r * k + i + kAhead, 0, 3);
        }
        transpose_block(to + i * kPanel + j, kPanel, from + row * k + i, k, n - row, k - i,
                        [](Vec v) { return v; });
      }
    }
  });
}

// Packs from [k, n], rows `stride` apart: a panel is a strip of columns. Several rows are packed at
// a time, so that both sides are accessed in runs.
inline void pack_columns(float* packed, const float* from, int64_t stride, int64_t n, int64_t k) {
  constexpr int64_t kRun = 16;
  parallel_for(k, kRun, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = 0; panel < panels_of(n); ++panel) {
      const int64_t column = panel * kPanel;
      for (int64_t i = begin; i < end; ++i) {
        float* to = packed + (panel * k + i) * kPanel;
        const float* row = from + i * stride + column;
        for (int64_t j = 0; j < kPanel; j += kLanes) {
          const int64_t present = n - column - j;
          store(to + j, present >= kLanes ? load(row + j)
                        : present > 0     ? load_first(row + j, present)
                                          : Vec{});
        }
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
