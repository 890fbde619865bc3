// Philox (core/philox.h) for kLanes counters at once.
#pragma once

#include <utility>

#include "core/philox.h"
#include "cpu/vec.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace fusewire::FUSEWIRE_TARGET {

typedef uint32_t UintVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));
typedef uint64_t WideVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));

// Returns the 64-bit products of the even lanes; the odd lanes are ignored. Compilers would use the
// far slower product of 64-bit numbers.
FUSEWIRE_INLINE WideVec multiply_even(WideVec a, WideVec b) {
#if defined(__x86_64__) && FUSEWIRE_VEC_BYTES == 64
  return reinterpret_cast<WideVec>(  // gcc 12 warns about its own form without a mask
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__x86_64__) && FUSEWIRE_VEC_BYTES == 32
  return reinterpret_cast<WideVec>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<WideVec>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}

template <int... kLane>
FUSEWIRE_INLINE void join_products(UintVec even, UintVec odd, UintVec& low, UintVec& high,
                                   std::integer_sequence<int, kLane...>) {
  low = __builtin_shufflevector(even, odd, ((kLane & 1) ? kLanes + kLane - 1 : kLane)...);
  high = __builtin_shufflevector(even, odd, ((kLane & 1) ? kLanes + kLane : kLane + 1)...);
}

// Computes the low and high halves of factor * x.
FUSEWIRE_INLINE void multiply_wide(UintVec x, uint32_t factor, UintVec& low, UintVec& high) {
  const WideVec by = WideVec{} + factor, even = reinterpret_cast<WideVec>(x);
  join_products(reinterpret_cast<UintVec>(multiply_even(even, by)),
                reinterpret_cast<UintVec>(multiply_even(even >> 32, by)), low, high,
                std::make_integer_sequence<int, kLanes>{});
}

// x: the four words of each lane's counter, which become its four random words.
template <int kRounds = kPhiloxRounds>
FUSEWIRE_INLINE void philox(uint64_t key, UintVec (&x)[4]) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    UintVec low0, high0, low2, high2;
    multiply_wide(x[0], kPhiloxFactor0, low0, high0);
    multiply_wide(x[2], kPhiloxFactor2, low2, high2);
    x[0] = high2 ^ x[1] ^ key0;
    x[1] = low2;
    x[2] = high0 ^ x[3] ^ key1;
    x[3] = low0;
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
