// This file is compiled without contraction: sums are integers, and what is computed of them in
// fp32 is rounded step by step, so that an answer has the same bits on every instruction set.
#include "cpu/gemm_int8.h"

#include "cpu/epilogue.h"
#include "cpu/int8_kernel.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr uint8_t kZero = 128;  // as a weight's byte

// Where a panel's rows of the weight begin, and how its numbers lie.
struct PanelSource {
  const float* first;
  int64_t row_step, k_step, rows, k;

  float at(int64_t row, int64_t i) const { return first[row * row_step + i * k_step]; }
};

// body(row, i) for the numbers of a panel, by lines of either layout.
template <class Body>
FUSEWIRE_INLINE void for_panel(const PanelSource& from, Body&& body) {
  for (int64_t begin = 0; begin < from.k; begin += kLine) {
    const int64_t end = begin + kLine < from.k ? begin + kLine : from.k;
    for (int64_t row = 0; row < from.rows; ++row) {
      for (int64_t i = begin; i < end; ++i) body(row, i);
    }
  }
}

// The scale that stands for a row of this magnitude: its own, or the one given. NaN where the row
// is not finite, or cannot be told by what was given.
float scale_for(int32_t largest_bits, const float* given) {
  const float own = scale_of(largest_bits);
  if (!given || own != own) return own;
  const bool scales = *given > 0.0f && *given <= __FLT_MAX__;
  return scales ? *given : own == 0.0f ? 0.0f : __builtin_nanf("");
}

// The nearest integer of 8 bits, in the form of a packed weight.
uint8_t rounded(float x, float scale) {
  if (!(scale > 0.0f)) return kZero;
  const float q = x / scale;
  const float within = q < -128.0f ? -128.0f : q > kLargestInt8 ? kLargestInt8 : q;
  const float shifted = within + kRoundToInteger;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  return static_cast<uint8_t>(bits + kZero);
}

void pack_panel(uint8_t* packed, float* scales, const float* given, const PanelSource& from) {
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
  __builtin_memset(packed, kZero, static_cast<size_t>(groups_of(from.k) * kPanelStep));
  for_panel(from, [&](int64_t row, int64_t i) {
    packed[i / kGroup * kPanelStep + row * kGroup + i % kGroup] =
        rounded(from.at(row, i), scales[row]);
  });
}

// One tile. Not inlined, so that the compiler gives each row count its own register allocation.
template <class Kernel, int kRows, Fetch kFetch>
__attribute__((noinline)) void int8_tile(const QuantizedRows<typename Kernel::Order>& x,
                                         const GemmArguments& a, const Tile& at) {
  const int64_t column = at.panel * kPanel + at.inside;
  const int64_t groups = groups_of(a.k);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight.data);
  const Epilogue epilogue = epilogue_at(a, at.row, column);
  float* out = static_cast<float*>(a.out) + at.row * a.out_stride + column;
  if constexpr (kFetch != Fetch::kStream) {
    prefetch<kRows>(epilogue, out, a.out_stride, at.columns);
  }
  UnsignedVec sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = sum[r][1] = x.starts[at.row + r] - UnsignedVec{};
  }
  Kernel::template multiply<kRows, kFetch>(
      x.block(at.row), weight + at.panel * groups * kPanelStep + at.inside * kGroup,
      weight + (at.fetched_panel * kPanelStep + at.part * fetched_bytes(kFetch)) * groups, groups,
      sum);
  // The scales' registers are loaded once for all rows.
  const float* scales = static_cast<const float*>(a.weight.scales) + column;
  Vec column_scale[2] = {};
  for (int half = 0; half < 2; ++half) {
    const int64_t first = half * kLanes, present = at.columns - first;
    if (present > 0) {
      column_scale[half] =
          present >= kLanes ? load(scales + first) : load_first(scales + first, present);
    }
  }
  Vec product[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) {
      const Vec exact = __builtin_convertvector(reinterpret_cast<const IntVec&>(sum[r][half]), Vec);
      product[r][half] = exact * (x.scales[at.row + r] * column_scale[half]);
    }
  }
  finish(product, epilogue, out, a.out_stride, at.columns);
}

template <class Kernel>
void run(const GemmArguments& a) {
  const auto x = quantized<typename Kernel::Order, Kernel::kMaxRows>(a);
  for_tiles<Kernel::kMaxRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    constexpr int kRows = decltype(rows)::value;
    const auto compute = at.fetch == Fetch::kStream ? int8_tile<Kernel, kRows, Fetch::kStream>
                         : at.fetch == Fetch::kNextPanel
                             ? int8_tile<Kernel, kRows, Fetch::kNextPanel>
                             : int8_tile<Kernel, kRows, Fetch::kNextPanelSlowly>;
    compute(x, a, at);
  });
}

}  // namespace

size_t int8_packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * groups_of(k) * kPanelStep);
}

void pack_int8(const PackArguments& a, const Stream&) {
  parallel_for(panels_of(a.n), 1, [&](int64_t panel, int64_t, int) {
    const int64_t first = panel * kPanel, left = a.n - first;
    const int64_t row_step = a.transposed ? 1 : a.k, k_step = a.transposed ? a.n : 1;
    const PanelSource from = {static_cast<const float*>(a.weight) + first * row_step, row_step,
                              k_step, left < kPanel ? left : kPanel, a.k};
    pack_panel(static_cast<uint8_t*>(a.packed) + panel * groups_of(a.k) * kPanelStep,
               a.scales + first, a.given ? a.given + first : nullptr, from);
  });
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
