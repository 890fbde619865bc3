// GEMM of rows in int8 with 4-bit weights (gemm_int4.h). This file is compiled without contraction,
// like gemm_int8.cc.
#include "cpu/bfloat16.h"
#include "cpu/gemm_int4.h"
#include "cpu/gemm_tile.h"
#include "cpu/int8_kernel.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr uint32_t kHalves = 0x0f0f0f0fu;

// The operands of a tile: its rows, and its columns of a panel.
template <class Order>
struct W4A8Operands {
  const typename Order::Number* x;  // the block of rows
  const float* row_sums;            // [chains][rows]: sums of their integers
  const float* row_scales;
  const uint32_t* panel;
  int64_t k;
  const uint32_t* ahead;
  const float *scales, *zeros;  // zeros: null where all are 8
  int64_t group;
};

// Computes the sum of each chain's integers for the rows of a block, exact in fp32.
template <class Order>
void sum_chains(float* sums, const typename Order::Number* x, int64_t rows, int64_t k,
                int64_t chain) {
  for (int64_t begin = 0; begin < k; begin += chain, sums += rows) {
    const int64_t end = begin + chain < k ? begin + chain : k;
    for (int64_t r = 0; r < rows; ++r) {
      int32_t sum = 0;
      for (int64_t i = begin; i < end; i += kGroup) {
        for (int64_t lane = 0; lane < kGroup; ++lane) sum += x[(i * rows) + r * kGroup + lane];
      }
      sums[r] = static_cast<float>(sum);
    }
  }
}

// Computes the sums of one chain of a tile. Unrolled, or they would not stay in registers.
template <class Kernel, int kRows, Fetch kFetch>
FUSEWIRE_INLINE void add_up(UnsignedVec (&to)[kRows][2], const typename Kernel::Order::Number*& x,
                            const uint32_t*& panel, const uint32_t*& ahead, int64_t words) {
  UnsignedVec sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = UnsignedVec{};
    sum[r][1] = UnsignedVec{};
  }
  for (int64_t left = words; left > 0; --left) {
    fetch_on_the_way<kFetch>(ahead, panel, kPanel, left);
    const UnsignedVec w0 = load_words(panel) ^ kMiddles;
    const UnsignedVec w1 = load_words(panel + kLanes) ^ kMiddles;
    Kernel::template add_group<kRows>(x, w0 & kHalves, w1 & kHalves, sum);
    Kernel::template add_group<kRows>(x + kRows * kGroup, (w0 >> 4) & kHalves, (w1 >> 4) & kHalves,
                                      sum);
    x += kRows * kPerWord;
    panel += kPanel;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    to[r][0] = sum[r][0];
    to[r][1] = sum[r][1];
  }
}

// Computes a tile. The integer sums of a chain are of unsigned codes, so each is too large by the
// zero point times the row's sum. Both and their difference stay below 2^24, where fp32 is exact.
// Not inlined, so that the compiler gives each row count its own register allocation.
template <class Kernel, int kRows, Fetch kFetch>
__attribute__((noinline)) void compute_rows(const W4A8Operands<typename Kernel::Order>& p,
                                            const Epilogue& epilogue, float* out,
                                            int64_t out_stride, int64_t columns) {
  if constexpr (kFetch != Fetch::kStream) prefetch<kRows>(epilogue, out, out_stride, columns);
  Vec total[kRows][2] = {};  // in memory; accessed once per chain
  UnsignedVec sums[kRows][2];
  const auto* x = p.x;
  const uint32_t *panel = p.panel, *ahead = p.ahead;
  const float* row_sums = p.row_sums;
  const int64_t length = int4_chain(p.group);
  for (int64_t begin = 0; begin < p.k; begin += length, row_sums += kRows) {
    const int64_t count = p.k - begin < length ? p.k - begin : length;
    add_up<Kernel, kRows, kFetch>(sums, x, panel, ahead, count / kPerWord);
    const int64_t group = p.group ? begin / p.group * kPanel : 0;
    for (int half = 0; half < 2; ++half) {
      const Vec scale = load(p.scales + group + half * kLanes);
      Vec zero = broadcast(static_cast<float>(kMiddle));
      if (p.zeros) zero += load(p.zeros + group + half * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec codes = __builtin_convertvector(reinterpret_cast<IntVec>(sums[r][half]), Vec);
        total[r][half] += (codes - zero * row_sums[r]) * scale;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) total[r][half] *= p.row_scales[r];
  }
  finish(total, epilogue, out, out_stride, columns);
}

template <class Kernel>
void run(const GemmArguments& a) {
  using Order = typename Kernel::Order;
  constexpr int kMost = Kernel::kMaxRows - (kRegisters == 32 ? 2 : 1);  // a word is two groups
  const int64_t chain = int4_chain(a.weight.group), chains = (a.k + chain - 1) / chain;
  const auto x = quantized<Order, kMost>(a, chains);
  parallel_for(row_tasks_of(a.m), 1, [&](int64_t task, int64_t, int) {
    const RowTask rows = row_task(a.m, task);
    for_row_blocks<kMost>(rows.last - rows.first, [&](auto count, int64_t from) {
      const int64_t first = rows.first + from;
      sum_chains<Order>(x.more + first * chains, x.block(first), decltype(count)::value, a.k,
                        chain);
    });
  });
  const uint32_t* weight = static_cast<const uint32_t*>(a.weight.data);
  const float* scales = static_cast<const float*>(a.weight.scales);
  const float* zeros = static_cast<const float*>(a.weight.zeros);
  const int64_t words = a.k / kPerWord;
  for_tiles<kMost>(a.m, a.n, [&](auto rows, const Tile& at) {
    constexpr int kRows = decltype(rows)::value;
    const int64_t of_columns = at.panel * panel_scales(a.k, a.weight.group) + at.inside;
    const W4A8Operands<Order> operands = {
        x.block(at.row),
        x.more + at.row * chains,
        x.scales + at.row,
        weight + at.panel * kPanel * words + at.inside,
        a.k,
        weight + (at.fetched_panel * kPanel + at.part * fetched(at.fetch)) * words,
        scales + of_columns,
        zeros ? zeros + of_columns : nullptr,
        a.weight.group};
    const int64_t column = at.panel * kPanel + at.inside;
    with_fetch(at.fetch, [&](auto fetch) {
      compute_rows<Kernel, kRows, decltype(fetch)::value>(
          operands, epilogue_at(a, at.row, column),
          static_cast<float*>(a.out) + at.row * a.out_stride + column, a.out_stride, at.columns);
    });
  });
}

}  // namespace

void run_w4a8(const GemmArguments& a, const Stream&) {
  run<WidenedKernel>(a);
}

#if FUSEWIRE_VEC_BYTES == 64
void run_w4a8_vnni(const GemmArguments& a, const Stream&) {
  run<VnniKernel>(a);
}
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
