// GEMM with bfloat16 weights, which are widened in registers (gemm_bfloat16.h).
#include "cpu/gemm_bfloat16.h"

#include "cpu/bfloat16.h"
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

struct WidenedOperands {
  const float* x;
  int64_t x_stride;
  const uint32_t* panel;  // pair p of column c at panel[p * kPanel + c]
  int64_t k;
  const uint32_t* ahead;

  WidenedOperands part(int64_t first, int64_t count, int64_t fetched) const {
    return {x + first, x_stride, panel + first / 2 * kPanel, count, ahead + first / 2 * fetched};
  }
};

template <int kRows>
FUSEWIRE_INLINE void add_products(const float* x, int64_t stride, Vec w0, Vec w1,
                                  Vec (&sum)[kRows][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Vec a = broadcast(x[r * stride]);
    sum[r][0] += a * w0;
    sum[r][1] += a * w1;
  }
}

// As the `multiply` of Product, in the same order. x is not read beyond an odd k.
template <int kRows, Fetch kFetch>
FUSEWIRE_INLINE void multiply(const WidenedOperands& p, Vec (&sum)[kRows][2]) {
  const uint32_t* ahead = p.ahead;
  const float* x = p.x;
  const uint32_t* w = p.panel;
  for (int64_t pairs = p.k / 2; pairs > 0; --pairs, x += 2, w += kPanel) {
    fetch_on_the_way<kFetch>(ahead, w, kPanel, pairs);
    const WordVec w0 = load_words(w), w1 = load_words(w + kLanes);
    add_products(x, p.x_stride, first_of(w0), first_of(w1), sum);
    add_products(x + 1, p.x_stride, second_of(w0), second_of(w1), sum);
  }
  if (p.k % 2) {
    add_products(x, p.x_stride, first_of(load_words(w)), first_of(load_words(w + kLanes)), sum);
  }
}

}  // namespace

void run_bfloat16(const GemmArguments& a, const Stream&) {
  static_assert(kChain % 2 == 0, "a pair lies in one chain");
  const float* x = static_cast<const float*>(a.x.data);
  const uint32_t* weight = static_cast<const uint32_t*>(a.weight.data);
  const int64_t pairs = pairs_of(a.k);
  for_tiles<kMaxRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    const WidenedOperands operands = {
        x + at.row * a.x.stride, a.x.stride, weight + at.panel * kPanel * pairs + at.inside, a.k,
        weight + (at.fetched_panel * kPanel + at.part * fetched(at.fetch)) * pairs};
    compute_tile<decltype(rows)::value>(a, at, operands);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
