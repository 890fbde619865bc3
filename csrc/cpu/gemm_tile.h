// One call of the micro kernel with what comes before and after it: a few rows times up to
// kColumns columns of a product over a packed panel, k cut into chains, with the epilogue.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kChain = 384;  // additions in one chain: rounding grows with its length

// How far `ahead` moves with each k.
constexpr int64_t fetched(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLine / 2 : kLine;
}

// One micro-kernel call: kRows x up to kColumns of the output. Not inlined, so that the compiler
// gives each row count its own register allocation.
template <int kRows, Fetch kFetch>
__attribute__((noinline)) void tile(const Product& product, const Epilogue& epilogue, float* out,
                                    int64_t out_stride, int64_t columns) {
  // What is read and written at the end is on its way meanwhile. Few rows wait for the panel alone.
  if constexpr (kFetch != Fetch::kStream) prefetch<kRows>(epilogue, out, out_stride, columns);
  Vec sum[kRows][2] = {};
  if (product.k <= kChain) {
    multiply<kRows, kFetch>(product, sum);
  } else {
    Vec total[kRows][2] = {};  // in memory; touched once in kChain steps
    Product part = product;
    for (int64_t k = 0; k < product.k; k += kChain) {
      part.k = product.k - k < kChain ? product.k - k : kChain;
      part.x = product.x + k * product.x_step;
      part.panel = product.panel + k * kPanel;
      part.ahead = product.ahead + k * fetched(kFetch);
      Vec chain[kRows][2] = {};
      multiply<kRows, kFetch>(part, chain);
      for (int r = 0; r < kRows; ++r) {
        total[r][0] += chain[r][0];
        total[r][1] += chain[r][1];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = total[r][0];
      sum[r][1] = total[r][1];
    }
  }
  finish(sum, epilogue, out, out_stride, columns);
}

}  // namespace fusewire::FUSEWIRE_TARGET
