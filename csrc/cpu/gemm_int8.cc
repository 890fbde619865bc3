// This file is compiled without contraction: sums are integers, and fp32 operations on them are
// rounded step by step, so that results have the same bits on every instruction set.
#include "cpu/gemm_int8.h"

#include "cpu/epilogue.h"
#include "cpu/int8_kernel.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// The rows of a weight from which a panel is packed, and the strides of their elements.
template <class Number>
struct PanelSource {
  const Number* first;
  int64_t row_step, k_step, rows, k;

  Number at(int64_t row, int64_t i) const { return first[row * row_step + i * k_step]; }
};

// Calls body(row, i) for the elements of a panel, by cache lines of either layout.
template <class Number, class Body>
FUSEWIRE_INLINE void for_panel(const PanelSource<Number>& from, Body&& body) {
  for (int64_t begin = 0; begin < from.k; begin += kLine) {
    const int64_t end = begin + kLine < from.k ? begin + kLine : from.k;
    for (int64_t row = 0; row < from.rows; ++row) {
      for (int64_t i = begin; i < end; ++i) body(row, i);
    }
  }
}

// Returns the scale of a row with this largest magnitude: the row's own, or the given one. NaN if
// the row is not finite, or not zero and the given scale is not a positive finite number.
float scale_for(int32_t largest_bits, const float* given) {
  const float own = scale_of(largest_bits);
  if (!given || own != own) return own;
  const bool scales = *given > 0.0f && *given <= __FLT_MAX__;
  return scales ? *given : own == 0.0f ? 0.0f : __builtin_nanf("");
}

// Returns the 8-bit integer nearest to x / scale, as a byte of a packed weight.
uint8_t rounded(float x, float scale) {
  if (!(scale > 0.0f)) return kZeroByte;
  const float q = x / scale;
  const float within = q < -128.0f ? -128.0f : q > kLargestInt8 ? kLargestInt8 : q;
  const float shifted = within + kRoundToInteger;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  return static_cast<uint8_t>(bits + kZeroByte);
}

void find_scales(float* scales, const float* given, const PanelSource<float>& from) {
  int32_t largest[kPanel] = {};
  for_panel(from, [&](int64_t row, int64_t i) {
    const float x = from.at(row, i);
    int32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    bits &= 0x7fffffff;
    if (bits > largest[row]) largest[row] = bits;
  });
  for (int64_t row = 0; row < from.rows; ++row) {
    scales[row] = scale_for(largest[row], given ? given + row : nullptr);
  }
}

void find_scales(float* scales, const float* given, const PanelSource<int8_t>& from) {
  for (int64_t row = 0; row < from.rows; ++row) {
    const bool finite = given[row] >= -__FLT_MAX__ && given[row] <= __FLT_MAX__;
    scales[row] = finite ? given[row] : __builtin_nanf("");
  }
}

// Returns the 8-bit integer as a byte of a packed weight.
uint8_t rounded(int8_t x, float) {
  return static_cast<uint8_t>(x + kZeroByte);
}

template <class Number>
void pack_panel(uint8_t* packed, float* scales, const float* given,
                const PanelSource<Number>& from) {
  find_scales(scales, given, from);
  for (int64_t group = 0; group < groups_of(from.k); ++group) {
    __builtin_memset(packed + group * kPanelStep, kZeroByte, kPanelStep);
  }
  for_panel(from, [&](int64_t row, int64_t i) {
    packed[i / kGroup * kPanelStep + row * kGroup + i % kGroup] =
        rounded(from.at(row, i), scales[row]);
  });
}

template <class Number>
void pack_panels(const PackArguments& a) {
  parallel_for(panels_of(a.n), 1, [&](int64_t panel, int64_t, int) {
    const int64_t first = panel * kPanel, left = a.n - first;
    const int64_t row_step = a.transposed ? 1 : a.k, k_step = a.transposed ? a.n : 1;
    const PanelSource<Number> from = {static_cast<const Number*>(a.weight) + first * row_step,
                                      row_step, k_step, left < kPanel ? left : kPanel, a.k};
    pack_panel(static_cast<uint8_t*>(a.packed) + panel * groups_of(a.k) * kPanelStep,
               a.scales + first, a.given ? a.given + first : nullptr, from);
  });
}

constexpr int64_t kLineBytes = 64;

// Returns the bytes by which `ahead` moves with each group.
constexpr int64_t fetched_bytes(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLineBytes / 2 : kLineBytes;
}

// As fetch_on_the_way (micro_kernel.h), where a step is a group instead of one k.
template <Fetch kFetch>
FUSEWIRE_INLINE void fetch(const uint8_t* panel, const uint8_t* ahead, int64_t group) {
  if constexpr (kFetch == Fetch::kNextPanel) __builtin_prefetch(ahead, 0, 2);
  if constexpr (kFetch == Fetch::kNextPanelSlowly) {
    if (group & 1) __builtin_prefetch(ahead, 0, 2);
  }
  if constexpr (kFetch == Fetch::kStream) {
#pragma GCC unroll 2
    for (int64_t byte = 0; byte < kColumns * kGroup; byte += kLineBytes) {
      __builtin_prefetch(panel + kStreamSteps * kPanelStep + byte, 0, 3);
    }
  }
}

// Computes the sums of one tile. Not inlined, so that the compiler gives each row count its own
// register allocation; unrolled, or the sums would not stay in registers.
template <class Kernel, int kRows, Fetch kFetch>
__attribute__((noinline)) void add_up(UnsignedVec (*to)[2], const uint32_t* starts,
                                      const typename Kernel::Order::Number* x, const uint8_t* panel,
                                      const uint8_t* ahead, int64_t groups) {
  UnsignedVec sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = starts[r] - UnsignedVec{};
    sum[r][1] = sum[r][0];
  }
  for (int64_t group = groups; group > 0; --group) {
    fetch<kFetch>(panel, ahead, group);
    ahead += fetched_bytes(kFetch);
    Kernel::template add_group<kRows>(x, load_bytes(panel), load_bytes(panel + FUSEWIRE_VEC_BYTES),
                                      sum);
    x += kRows * kGroup;
    panel += kPanelStep;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    to[r][0] = sum[r][0];
    to[r][1] = sum[r][1];
  }
}

// Scales the sums of a tile and applies the epilogue.
__attribute__((noinline)) void write_tile(const GemmArguments& a, const Tile& at, int rows,
                                          const UnsignedVec (*sums)[2], const float* row_scales) {
  const int64_t column = at.panel * kPanel + at.inside;
  const float* scales = static_cast<const float*>(a.weight.scales) + column;
  Vec column_scale[2] = {};
  for (int half = 0; half < 2; ++half) {
    const int64_t first = half * kLanes, present = at.columns - first;
    if (present > 0) {
      column_scale[half] =
          present >= kLanes ? load(scales + first) : load_first(scales + first, present);
    }
  }
  Vec products[kMaxRows][2];
  for (int r = 0; r < rows; ++r) {
    for (int half = 0; half < 2; ++half) {
      const IntVec exact = reinterpret_cast<IntVec>(sums[r][half]);
      products[r][half] =
          __builtin_convertvector(exact, Vec) * (row_scales[r] * column_scale[half]);
    }
  }
  finish(products, rows, epilogue_at(a, at.row, column),
         static_cast<float*>(a.out) + at.row * a.out_stride + column, a.out_stride, at.columns);
}

template <class Kernel>
void run(const GemmArguments& a) {
  const auto x = quantized<typename Kernel::Order, Kernel::kMaxRows>(a);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight.data);
  const int64_t groups = groups_of(a.k);
  for_tiles<Kernel::kMaxRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    constexpr int kRows = decltype(rows)::value;
    const uint8_t* panel = weight + at.panel * groups * kPanelStep + at.inside * kGroup;
    const uint8_t* ahead = weight + at.fetched_panel * groups * kPanelStep +
                           at.part * groups * fetched_bytes(at.fetch);
    if (at.fetch != Fetch::kStream) {
      const int64_t column = at.panel * kPanel + at.inside;
      prefetch<kRows>(epilogue_at(a, at.row, column),
                      static_cast<const float*>(a.out) + at.row * a.out_stride + column,
                      a.out_stride, at.columns);
    }
    UnsignedVec sums[kRows][2];
    with_fetch(at.fetch, [&](auto fetch) {
      add_up<Kernel, kRows, decltype(fetch)::value>(sums, x.starts + at.row, x.block(at.row), panel,
                                                    ahead, groups);
    });
    write_tile(a, at, kRows, sums, x.scales + at.row);
  });
}

}  // namespace

size_t int8_packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * groups_of(k) * kPanelStep);
}

void pack_int8(const PackArguments& a, const Stream&) {
  a.codes ? pack_panels<int8_t>(a) : pack_panels<float>(a);
}

void run_int8(const GemmArguments& a, const Stream&) {
  run<WidenedKernel>(a);
}

#if FUSEWIRE_VEC_BYTES == 64
void run_int8_vnni(const GemmArguments& a, const Stream&) {
  run<VnniKernel>(a);
}
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
