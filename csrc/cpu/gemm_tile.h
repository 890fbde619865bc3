// One call of the micro-kernel and its epilogue: a few rows times up to kColumns columns of a
// product with a packed panel, with k split into chains.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/gemm_tasks.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kChain = 384;  // additions in one chain: rounding errors grow with its length

// Returns the floats or words by which `ahead` moves with each step of a kernel.
constexpr int64_t fetched(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLine / 2 : kLine;
}

// Returns the length of the chains of a product; operands with chains of their own overload it.
template <class Operands>
FUSEWIRE_INLINE int64_t chain_of(const Operands&) {
  return kChain;
}

// Computes kRows x up to kColumns of the output in one micro-kernel call. `operands` are a Product
// or another type with a `multiply` and parts. Not inlined, so that the compiler gives each row
// count its own register allocation.
template <int kRows, Fetch kFetch, class Operands>
__attribute__((noinline)) void tile(const Operands& operands, const Epilogue& epilogue, float* out,
                                    int64_t out_stride, int64_t columns) {
  // Prefetch what is read and written at the end. With kStream there are few rows, which wait for
  // the panel alone.
  if constexpr (kFetch != Fetch::kStream) prefetch<kRows>(epilogue, out, out_stride, columns);
  Vec sum[kRows][2];  // in memory; accessed once per chain
  const int64_t length = chain_of(operands);
  int64_t k = 0;
  do {
    const int64_t count = operands.k - k < length ? operands.k - k : length;
    Vec chain[kRows][2] = {};
    multiply<kRows, kFetch>(operands.part(k, count, fetched(kFetch)), chain);
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = k ? sum[r][0] + chain[r][0] : chain[r][0];
      sum[r][1] = k ? sum[r][1] + chain[r][1] : chain[r][1];
    }
    k += count;
  } while (k < operands.k);
  finish(sum, epilogue, out, out_stride, columns);
}

// Computes a tile of a product with a packed weight, with its prefetches.
template <int kRows, class Operands>
void compute_tile(const GemmArguments& a, const Tile& at, const Operands& operands) {
  const int64_t column = at.panel * kPanel + at.inside;
  with_fetch(at.fetch, [&](auto fetch) {
    tile<kRows, decltype(fetch)::value>(operands, epilogue_at(a, at.row, column),
                                        static_cast<float*>(a.out) + at.row * a.out_stride + column,
                                        a.out_stride, at.columns);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
