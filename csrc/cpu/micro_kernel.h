// The inner product of GEMM and of attention: a few rows times two registers of columns.
//
// `rows` x 2 sums stay in registers during one pass over k, so an output element is one chain of
// fused multiply-adds in the order of k. The panel is loaded in whole registers, x by broadcasts.
#pragma once

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int kRegisters = FUSEWIRE_VEC_BYTES == 64 ? 32 : 16;
constexpr int kMaxRows = (kRegisters - 3) / 2;  // besides the sums: two of the panel, one broadcast
constexpr int kColumns = 2 * kLanes;

struct Product {
  const float* x;  // element (row, k) at x[row * x_stride + k * x_step]
  int64_t x_stride, x_step;
  const float* panel;  // element (k, column) at panel[k * panel_stride + column]
  int64_t panel_stride, k;
  const float* ahead = nullptr;  // with kNextPanel and kNextPanelSlowly

  // Returns `count` steps of k from `first` on; `ahead` moves by `fetched` floats per step.
  Product part(int64_t first, int64_t count, int64_t fetched) const {
    return {x + first * x_step,           x_stride,     x_step,
            panel + first * panel_stride, panel_stride, count,
            ahead + first * fetched};
  }
};

// What is prefetched meanwhile: nothing; a cache line of another panel for each k, or for each
// second k, into L2; or this panel's own columns kStreamSteps further on, into L1, for a panel that
// is read only once.
enum class Fetch { kNothing, kNextPanel, kNextPanelSlowly, kStream };
constexpr int64_t kStreamSteps = 32;

// Prefetches at one step of a kernel; `left` counts the steps down, and `w` is the step's row of
// the panel.
template <Fetch kFetch, class Word>
FUSEWIRE_INLINE void fetch_on_the_way(const Word*& ahead, const Word* w, int64_t w_stride,
                                      int64_t left) {
  constexpr int64_t kLine = 64 / sizeof(Word);
  if constexpr (kFetch == Fetch::kNextPanel) {
    __builtin_prefetch(ahead, 0, 2);
    ahead += kLine;
  }
  if constexpr (kFetch == Fetch::kNextPanelSlowly) {
    if (left & 1) __builtin_prefetch(ahead, 0, 2);
    ahead += kLine / 2;
  }
  if constexpr (kFetch == Fetch::kStream) {
#pragma GCC unroll 2
    for (int64_t column = 0; column < kColumns; column += kLine) {
      __builtin_prefetch(w + kStreamSteps * w_stride + column, 0, 3);
    }
  }
}

// sum[row][half] += x . panel, for kRows rows.
template <int kRows, Fetch kFetch = Fetch::kNothing>
FUSEWIRE_INLINE void multiply(const Product& p, Vec (&sum)[kRows][2]) {
  const float* ahead = p.ahead;
  const float* x = p.x;
  const float* w = p.panel;
  const int64_t stride = p.x_stride, step = p.x_step, w_stride = p.panel_stride;
  for (int64_t k = p.k; k > 0; --k, x += step, w += w_stride) {
    fetch_on_the_way<kFetch>(ahead, w, w_stride, k);
    const Vec w0 = load(w), w1 = load(w + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec a = broadcast(x[r * stride]);
      sum[r][0] += a * w0;
      sum[r][1] += a * w1;
    }
  }
}

// Calls body with std::integral_constant-like `Rows<n>` for the run-time n in 1..kMaxRows.
template <int n>
struct Rows {
  static constexpr int value = n;
};

template <int n = kMaxRows, class Body>
FUSEWIRE_INLINE void with_rows(int64_t rows, Body&& body) {
  if constexpr (n > 0) {
    if (rows == n) return body(Rows<n>{});
    with_rows<n - 1>(rows, body);
  }
}

// Splits `rows` evenly into blocks of at most kMost (16 is 8 + 8, not 14 + 2) and calls
// body(Rows<count>, first).
template <int kMost = kMaxRows, class Body>
FUSEWIRE_INLINE void for_row_blocks(int64_t rows, Body&& body) {
  const int64_t blocks = (rows + kMost - 1) / kMost;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t from = rows * block / blocks;
    const int64_t to = rows * (block + 1) / blocks;
    with_rows<kMost>(to - from, [&](auto count) { body(count, from); });
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
