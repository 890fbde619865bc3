// GEMM with 4-bit weights, which are converted to floats in registers (gemm_int4.h).
#include "cpu/gemm_int4.h"

#if FUSEWIRE_VEC_BYTES == 64
#include <immintrin.h>
#endif

#include "core/gemm_part.h"
#include "core/thread_buffer.h"
#include "cpu/bfloat16.h"
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Registers besides the sums: one for the broadcast, two of words, two of their elements and, with
// AVX-512, the table of values.
constexpr int kMostRows = (kRegisters - (FUSEWIRE_VEC_BYTES == 64 ? 6 : 5)) / 2;

// Returns element j of each word.
template <int j>
FUSEWIRE_INLINE Vec number(WordVec words) {
  constexpr int kBits = 4, kPosition = j < 4 ? 8 * j : 8 * (j - 4) + kBits;
#if FUSEWIRE_VEC_BYTES == 64
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  // Indexed by the lowest 4 bits. All lanes, but with a mask: GCC warns about its own header
  // otherwise.
  return reinterpret_cast<Vec>(_mm512_maskz_permutexvar_ps(
      __mmask16(-1), reinterpret_cast<__m512i>(words >> kPosition), table));
#else
  constexpr int kUpper = 32 - kBits;
  const WordVec shifted = words << (kUpper - kPosition);
  return __builtin_convertvector(reinterpret_cast<const IntVec&>(shifted) >> kUpper, Vec);
#endif
}

template <bool kHasZeros>
struct Int4Operands {
  const float* x;
  int64_t x_stride;
  const uint32_t* panel;  // word p of column c at panel[p * kPanel + c]
  int64_t k;
  const uint32_t* ahead;
  const float *scales, *zeros;  // of group g and column c at [g * kPanel + c]
  int64_t group;

  const Int4Operands& part(int64_t, int64_t, int64_t) const { return *this; }  // there is only one
};

template <bool kHasZeros>
FUSEWIRE_INLINE int64_t chain_of(const Int4Operands<kHasZeros>& p) {
  return p.k;
}

template <int j, int kRows>
FUSEWIRE_INLINE void add_products(const float* x, int64_t stride, const WordVec (&words)[2],
                                  const Vec* zeros, Vec (&sum)[kRows][2]) {
  Vec n0 = number<j>(words[0]), n1 = number<j>(words[1]);
  if (zeros) {
    n0 -= zeros[0];
    n1 -= zeros[1];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Vec a = broadcast(x[r * stride + j]);
    sum[r][0] += a * n0;
    sum[r][1] += a * n1;
  }
  if constexpr (j + 1 < kPerWord) add_products<j + 1>(x, stride, words, zeros, sum);
}

// Adds kChains chains from `index` on, each of `length` inputs. They are accumulated side by side,
// because with few rows one chain would wait for the latency of its sums; which chains these are
// changes no bits.
template <int kRows, Fetch kFetch, int kChains, bool kHasZeros>
FUSEWIRE_INLINE void multiply_chains(const Int4Operands<kHasZeros>& p, int64_t index,
                                     int64_t length, const uint32_t*& ahead, Vec (&sum)[kRows][2]) {
  const int64_t begin = index * int4_chain(p.group);
  const float* x = p.x + begin;
  const uint32_t* w = p.panel + begin / kPerWord * kPanel;
  int64_t group[kChains];  // offset of its scales
  Vec zeros[kChains][2], chain[kChains][kRows][2] = {};
  for (int c = 0; c < kChains; ++c) {
    group[c] = p.group ? (begin + c * length) / p.group * kPanel : 0;
    for (int half = 0; half < 2 && kHasZeros; ++half) {
      zeros[c][half] = load(p.zeros + group[c] + half * kLanes);
    }
  }
  for (int64_t words = length / kPerWord; words > 0; --words, x += kPerWord, w += kPanel) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
      const uint32_t* of_chain = w + c * (length / kPerWord) * kPanel;
      fetch_on_the_way<kFetch>(ahead, of_chain, kPanel, words);
      add_products<0>(x + c * length, p.x_stride,
                      {load_words(of_chain), load_words(of_chain + kLanes)},
                      kHasZeros ? zeros[c] : nullptr, chain[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kChains; ++c) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Vec scale = load(p.scales + group[c] + half * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sum[r][half] = multiply_add(chain[c][r][half], scale, sum[r][half]);
      }
    }
  }
}

template <int kRows, Fetch kFetch, bool kHasZeros>
FUSEWIRE_INLINE void multiply(const Int4Operands<kHasZeros>& p, Vec (&sum)[kRows][2]) {
  constexpr int kAtOnce = kRows == 1 ? kRegisters / 8 : kRows <= 3 ? kRegisters / 16 : 1;
  const int64_t length = int4_chain(p.group);
  const int64_t whole = p.k / length;
  const uint32_t* ahead = p.ahead;
  int64_t chain = 0;
  for (; chain + kAtOnce <= whole; chain += kAtOnce) {
    multiply_chains<kRows, kFetch, kAtOnce>(p, chain, length, ahead, sum);
  }
  for (; chain * length < p.k; ++chain) {
    const int64_t left = p.k - chain * length;
    multiply_chains<kRows, kFetch, 1>(p, chain, left < length ? left : length, ahead, sum);
  }
}

// Packs eight codes, which are two per byte.
uint32_t packed_word(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < kPerWord; ++i) {
    const uint32_t code = codes[i / 2] >> (i % 2 * 4) & 15u;
    word |= code << (i < 4 ? 8 * i : 8 * (i - 4) + 4);
  }
  return word ^ kMiddles;
}

template <bool kHasZeros>
void run(const GemmArguments& a) {
  const int64_t words = a.k / kPerWord;
  const float* x = static_cast<const float*>(a.x.data);
  const uint32_t* weight = static_cast<const uint32_t*>(a.weight.data);
  const float* scales = static_cast<const float*>(a.weight.scales);
  const float* zeros = static_cast<const float*>(a.weight.zeros);
  for_tiles<kMostRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    const int64_t of_columns = at.panel * panel_scales(a.k, a.weight.group) + at.inside;
    const Int4Operands<kHasZeros> operands = {
        x + at.row * a.x.stride,
        a.x.stride,
        weight + at.panel * kPanel * words + at.inside,
        a.k,
        weight + (at.fetched_panel * kPanel + at.part * fetched(at.fetch)) * words,
        scales + of_columns,
        kHasZeros ? zeros + of_columns : nullptr,
        a.weight.group};
    compute_tile<decltype(rows)::value>(a, at, operands);
  });
}

// Permutes some rows of x at a time to the order of the weight's inputs, so that scratch memory
// stays small.
void run_ordered(const GemmArguments& product, void (*multiply)(const GemmArguments&)) {
  const int64_t rows = product.m < 8 * kTaskRows ? product.m : 8 * kTaskRows;
  auto* ordered =
      static_cast<float*>(thread_buffer(static_cast<size_t>(rows * product.k) * sizeof(float)));
  for (int64_t first = 0; first < product.m; first += rows) {
    GemmArguments a = rows_from<float>(product, first);
    if (a.m > rows) a.m = rows;
    const float* x = moved<float>(product.x.data, first * product.x.stride);
    parallel_for(a.m, 1, [&](int64_t row, int64_t, int) {
      const float* from = x + row * product.x.stride;
      for (int64_t i = 0; i < a.k; ++i) ordered[row * a.k + i] = from[a.weight.order[i]];
    });
    a.x = {ordered, a.k};
    multiply(a);
  }
}

}  // namespace

size_t int4_packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * kPanel * k / kPerWord) * sizeof(uint32_t);
}

size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group) {
  return static_cast<size_t>(panels_of(n) * panel_scales(k, group)) * sizeof(float);
}

void pack_int4(const PackArguments& a, const Stream&) {
  const int64_t words = a.k / kPerWord, groups = panel_scales(a.k, a.group) / kPanel;
  const uint8_t* codes = static_cast<const uint8_t*>(a.weight);
  parallel_for(panels_of(a.n), 1, [&](int64_t panel, int64_t, int) {
    uint32_t* packed = static_cast<uint32_t*>(a.packed) + panel * words * kPanel;
    for (int64_t c = 0; c < kPanel; ++c) {
      const int64_t row = panel * kPanel + c;
      const bool present = row < a.n;
      for (int64_t p = 0; p < words; ++p) {
        packed[p * kPanel + c] = present ? packed_word(codes + (row * words + p) * 4) : 0;
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t from = row * groups + g, to = (panel * groups + g) * kPanel + c;
        a.scales[to] = present ? a.given[from] : 0.0f;
        if (a.packed_zeros) {
          a.packed_zeros[to] = present ? static_cast<float>(a.zeros[from] - kMiddle) : 0.0f;
        }
      }
    }
  });
}

void run_int4(const GemmArguments& a, const Stream&) {
  const auto multiply = a.weight.zeros ? run<true> : run<false>;
  a.weight.order ? run_ordered(a, multiply) : multiply(a);
}

}  // namespace fusewire::FUSEWIRE_TARGET
