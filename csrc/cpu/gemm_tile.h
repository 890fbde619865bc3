// One call of the micro kernel with what comes before and after it: a few rows times up to
// kColumns columns of a product over a packed panel, k cut into chains, with the epilogue.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/gemm_tasks.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kChain = 384;  // additions in one chain: rounding grows with its length

// How far `ahead` moves with each step of a kernel.
constexpr int64_t fetched(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLine / 2 : kLine;
}

// How long the chains of a product are; operands that have chains of their own say otherwise.
template <class Operands>
FUSEWIRE_INLINE int64_t chain_of(const Operands&) {
  return kChain;
}

// The sums of one micro-kernel call: kRows x kColumns of the product, where `operands` are a
// Product or something else with a `multiply` and parts. Not inlined, so that the compiler gives
// each row count its own register allocation, with nothing else to keep in registers.
template <int kRows, Fetch kFetch, class Operands>
__attribute__((noinline)) void add_up(Vec (&sum)[kRows][2], const Operands& operands) {
  const int64_t length = chain_of(operands);
  int64_t k = 0;
  do {
    const int64_t count = operands.k - k < length ? operands.k - k : length;
    Vec chain[kRows][2] = {};
    multiply<kRows, kFetch>(operands.part(k, count, fetched(kFetch)), chain);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {  // unrolled, or the chains would not stay in registers
      sum[r][0] = k ? sum[r][0] + chain[r][0] : chain[r][0];
      sum[r][1] = k ? sum[r][1] + chain[r][1] : chain[r][1];
    }
    k += count;
  } while (k < operands.k);
}

// One micro-kernel call with its epilogue, of up to kColumns columns.
template <int kRows, Fetch kFetch, class Operands>
FUSEWIRE_INLINE void tile(const Operands& operands, const Epilogue& epilogue, float* out,
                          int64_t out_stride, int64_t columns) {
  // What is read and written at the end is on its way meanwhile. Few rows wait for the panel alone.
  if constexpr (kFetch != Fetch::kStream) prefetch<kRows>(epilogue, out, out_stride, columns);
  Vec sum[kRows][2];
  add_up<kRows, kFetch>(sum, operands);
  finish(sum, kRows, epilogue, out, out_stride, columns);
}

// The tile of a product on a packed weight, with what it fetches on the way.
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
