// The inner products of int8 GEMM: kRows rows times two registers of columns, sums of 32 bits.
// Integers wrap around, so sums are exact whatever their order while the result has 32 bits.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/gemm_int8.h"
#include "cpu/int8_rows.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kLineBytes = 64;

typedef UnsignedVec UnalignedUnsignedVec __attribute__((aligned(1)));

FUSEWIRE_INLINE UnsignedVec load_bytes(const uint8_t* p) {
  return *reinterpret_cast<const UnalignedUnsignedVec*>(p);
}

// From memory, which costs no shuffle: of a copy of both pairs of a group GCC makes one load into a
// general register and broadcasts its halves from there.
FUSEWIRE_INLINE UnsignedVec broadcast_pair(const int16_t* x) {
  typedef uint32_t Pair __attribute__((may_alias, aligned(2)));
  return *reinterpret_cast<const Pair*>(x) - UnsignedVec{};
}

// How far `ahead` moves with each group.
constexpr int64_t fetched_bytes(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLineBytes / 2 : kLineBytes;
}

// As in micro_kernel.h, where a step is a group instead of one k.
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

// On every instruction set: bytes widened to 16 bits, pairs of products added to 32. Products of
// bytes themselves (`vpmaddubsw`) are added to 16 bits, which do not hold them.
struct WidenedKernel {
  using Order = Pairs;
  // Beside the sums: the panel's even and odd bytes, two broadcasts, a product and the mask.
  static constexpr int kMaxRows = (kRegisters - 8) / 2;

  // Of each lane, the sum of the products of its two halves.
  FUSEWIRE_INLINE static UnsignedVec add_products(UnsignedVec a, UnsignedVec b) {
#if FUSEWIRE_VEC_BYTES == 64
    return reinterpret_cast<UnsignedVec>(
        _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif FUSEWIRE_VEC_BYTES == 32
    return reinterpret_cast<UnsignedVec>(
        _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
    return reinterpret_cast<UnsignedVec>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    const IntVec x = reinterpret_cast<IntVec>(a), y = reinterpret_cast<IntVec>(b);
    return reinterpret_cast<UnsignedVec>((x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16));
#endif
  }

  template <int kRows, Fetch kFetch>
  FUSEWIRE_INLINE static void multiply(const int16_t* x, const uint8_t* panel, const uint8_t* ahead,
                                       int64_t groups, UnsignedVec (&sum)[kRows][2]) {
    constexpr uint32_t kEven = 0x00ff00ff;
    for (int64_t group = groups; group > 0; --group) {
      fetch<kFetch>(panel, ahead, group);
      ahead += fetched_bytes(kFetch);
      const UnsignedVec w0 = load_bytes(panel), w1 = load_bytes(panel + FUSEWIRE_VEC_BYTES);
      const UnsignedVec even0 = w0 & kEven, even1 = w1 & kEven;
      const UnsignedVec odd0 = (w0 >> 8) & kEven, odd1 = (w1 >> 8) & kEven;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const UnsignedVec even = broadcast_pair(x + r * kGroup);
        const UnsignedVec odd = broadcast_pair(x + r * kGroup + 2);
        sum[r][0] += add_products(even0, even) + add_products(odd0, odd);
        sum[r][1] += add_products(even1, even) + add_products(odd1, odd);
      }
      x += kRows * kGroup;
      panel += kPanelStep;
    }
  }
};

#if FUSEWIRE_VEC_BYTES == 64
// AVX512-VNNI, whose instruction is written out: this file is compiled without it, for CPUs that
// have none.
struct VnniKernel {
  using Order = Bytes;
  static constexpr int kMaxRows = (kRegisters - 3) / 2;

  template <int kRows, Fetch kFetch>
  FUSEWIRE_INLINE static void multiply(const int8_t* x, const uint8_t* panel, const uint8_t* ahead,
                                       int64_t groups, UnsignedVec (&sum)[kRows][2]) {
    typedef int32_t FourBytes __attribute__((may_alias));
    for (int64_t group = groups; group > 0; --group) {
      fetch<kFetch>(panel, ahead, group);
      ahead += fetched_bytes(kFetch);
      const UnsignedVec w0 = load_bytes(panel), w1 = load_bytes(panel + FUSEWIRE_VEC_BYTES);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const FourBytes& four = *reinterpret_cast<const FourBytes*>(x + r * kGroup);
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum[r][0]) : "v"(w0), "m"(four));
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum[r][1]) : "v"(w1), "m"(four));
      }
      x += kRows * kGroup;
      panel += kPanelStep;
    }
  }
};
#endif

}  // namespace
}  // namespace fusewire::FUSEWIRE_TARGET
