// The inner loops of int8 GEMM, for kRows rows times two registers of columns: `add_group` adds the
// products of a group, with weights as unsigned bytes, to sums of 32 bits. Integers wrap around, so
// sums are exact in any order as long as the result fits 32 bits.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/gemm_int8.h"
#include "cpu/int8_rows.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

typedef UnsignedVec UnalignedUnsignedVec __attribute__((aligned(1)));

FUSEWIRE_INLINE UnsignedVec load_bytes(const uint8_t* p) {
  return *reinterpret_cast<const UnalignedUnsignedVec*>(p);
}

// Broadcasts from memory, which costs no shuffle: if both pairs of a group were copied first, GCC
// would load them into a general register and broadcast its halves from there.
FUSEWIRE_INLINE UnsignedVec broadcast_pair(const int16_t* x) {
  typedef uint32_t Pair __attribute__((may_alias, aligned(2)));
  return *reinterpret_cast<const Pair*>(x) - UnsignedVec{};
}

// For every instruction set: bytes are widened to 16 bits, and pairs of products are added in 32
// bits. `vpmaddubsw` would multiply the bytes themselves, but adds the products in 16 bits, which
// cannot hold them.
struct WidenedKernel {
  using Order = Pairs;
  // Registers besides the sums: the panel's even and odd bytes, two broadcasts, a product and the
  // mask.
  static constexpr int kMaxRows = (kRegisters - 8) / 2;

  // Returns, for each lane, the sum of the products of its two halves.
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

  template <int kRows>
  FUSEWIRE_INLINE static void add_group(const int16_t* x, UnsignedVec w0, UnsignedVec w1,
                                        UnsignedVec (&sum)[kRows][2]) {
    constexpr uint32_t kEven = 0x00ff00ff;
    const UnsignedVec even0 = w0 & kEven, even1 = w1 & kEven;
    const UnsignedVec odd0 = (w0 >> 8) & kEven, odd1 = (w1 >> 8) & kEven;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const UnsignedVec even = broadcast_pair(x + r * kGroup);
      const UnsignedVec odd = broadcast_pair(x + r * kGroup + 2);
      sum[r][0] += add_products(even0, even) + add_products(odd0, odd);
      sum[r][1] += add_products(even1, even) + add_products(odd1, odd);
    }
  }
};

#if FUSEWIRE_VEC_BYTES == 64
// AVX512-VNNI. The instruction is inline assembly, because this file is compiled for CPUs without
// it, too.
struct VnniKernel {
  using Order = Bytes;
  static constexpr int kMaxRows = (kRegisters - 3) / 2;

  // The sum is passed by value: GCC keeps a reference that asm writes to in memory.
  FUSEWIRE_INLINE static UnsignedVec add_products(UnsignedVec sum, UnsignedVec w, const int8_t* x) {
    typedef int32_t FourBytes __attribute__((may_alias));
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(w), "m"(*reinterpret_cast<const FourBytes*>(x)));
    return sum;
  }

  template <int kRows>
  FUSEWIRE_INLINE static void add_group(const int8_t* x, UnsignedVec w0, UnsignedVec w1,
                                        UnsignedVec (&sum)[kRows][2]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = add_products(sum[r][0], w0, x + r * kGroup);
      sum[r][1] = add_products(sum[r][1], w1, x + r * kGroup);
    }
  }
};
#endif

}  // namespace
}  // namespace fusewire::FUSEWIRE_TARGET
