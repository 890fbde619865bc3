// GEMM with bfloat16 weights by vdpbf16ps, which adds the products of two adjacent elements along k
// to an fp32 accumulator (gemm_bfloat16.h). The instruction is inline assembly, because the file is
// compiled for every CPU with AVX-512; only the target avx512_bf16 calls it.
#include "cpu/gemm_bfloat16.h"

#if FUSEWIRE_VEC_BYTES == 64
#include "core/thread_buffer.h"
#include "cpu/bfloat16.h"
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Rows of x as words of two adjacent elements, like the columns of the panel.
struct DotOperands {
  const uint32_t* x;
  int64_t x_stride;
  const uint32_t* panel;
  int64_t k;  // elements
  const uint32_t* ahead;

  DotOperands part(int64_t first, int64_t count, int64_t fetched) const {
    return {x + first / 2, x_stride, panel + first / 2 * kPanel, count,
            ahead + first / 2 * fetched};
  }
};

// The word of x is broadcast as it is loaded. The sum is passed by value: GCC keeps a reference
// that asm writes to in memory, at every call.
FUSEWIRE_INLINE Vec add_dot(Vec sum, const uint32_t& x, WordVec w) {
  asm("vdpbf16ps %1%{1to16%}, %2, %0" : "+v"(sum) : "m"(x), "v"(w));
  return sum;
}

template <int kRows, Fetch kFetch>
FUSEWIRE_INLINE void multiply(const DotOperands& p, Vec (&sum)[kRows][2]) {
  const uint32_t* ahead = p.ahead;
  const uint32_t* x = p.x;
  const uint32_t* w = p.panel;
  const int64_t stride = p.x_stride;
  for (int64_t pairs = pairs_of(p.k); pairs > 0; --pairs, ++x, w += kPanel) {
    fetch_on_the_way<kFetch>(ahead, w, kPanel, pairs);
    const WordVec w0 = load_words(w), w1 = load_words(w + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = add_dot(sum[r][0], x[r * stride], w0);
      sum[r][1] = add_dot(sum[r][1], x[r * stride], w1);
    }
  }
}

// Writes x[m, k] as words, with rows `stride` words apart; the element after an odd k is zero.
void round_rows(uint32_t* words, int64_t stride, const GemmArguments& a) {
  constexpr int64_t kGrain = 16;
  parallel_for(a.m, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = static_cast<const float*>(a.x.data) + row * a.x.stride;
      uint32_t* to = words + row * stride;
      for (int64_t i = 0; i < a.k; i += 2 * kLanes) {
        const auto read = [&](int64_t first) {
          const int64_t present = a.k - first;
          return present >= kLanes ? load(from + first)
                 : present > 0     ? load_first(from + first, present)
                                   : Vec{};
        };
        const Vec low = read(i), high = read(i + kLanes);
        const Vec first = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                                  22, 24, 26, 28, 30);
        const Vec second = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21,
                                                   23, 25, 27, 29, 31);
        store_words(to + i / 2, paired(first, second));
      }
    }
  });
}

// Returns the row stride in words: whole registers are written, and adjacent rows do not fall into
// the same set of the L1 cache, as with row_stride (cpu/rows.cc).
int64_t stride_of(int64_t k) {
  return ((pairs_of(k) + kLanes - 1) / kLanes | 1) * kLanes;
}

}  // namespace

void run_bfloat16_dot(const GemmArguments& a, const Stream&) {
  static_assert(kChain % 2 == 0, "a pair lies in one chain");
  const int64_t pairs = pairs_of(a.k), stride = stride_of(a.k);
  uint32_t* x =
      static_cast<uint32_t*>(thread_buffer(static_cast<size_t>(a.m * stride) * sizeof(uint32_t)));
  round_rows(x, stride, a);
  const uint32_t* weight = static_cast<const uint32_t*>(a.weight.data);
  for_tiles<kMaxRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    const DotOperands operands = {
        x + at.row * stride, stride, weight + at.panel * kPanel * pairs + at.inside, a.k,
        weight + (at.fetched_panel * kPanel + at.part * fetched(at.fetch)) * pairs};
    compute_tile<decltype(rows)::value>(a, at, operands);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
#endif
