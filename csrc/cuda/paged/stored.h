// Conversion of elements to and from the pages of a cache, which hold the compute type or codes of
// float8 e4m3 (Micikevicius et al. 2022, FP8 Formats for Deep Learning).
#pragma once

#include <type_traits>

#include "cuda/element.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

using Float8 = __nv_fp8_e4m3;

// Converts elements of T to what pages store. In float8 that is x / scale, rounded to nearest and
// saturated at 448; NaN stays NaN.
template <class Stored, class T, int kWidth>
__device__ __forceinline__ Pack<Stored, kWidth> stored(const Pack<T, kWidth>& x, float scale) {
  if constexpr (std::is_same_v<Stored, T>) {
    return x;
  } else {
    Pack<Stored, kWidth> codes;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      codes.at[i] = from_float<Stored>(__fdiv_rn(to_float(x.at[i]), scale));
    }
    return codes;
  }
}

// Converts the codes in the two low bytes to elements of T, the first in the low half, exactly.
template <class T>
__device__ __forceinline__ uint32_t widen(uint32_t codes);
template <>
__device__ __forceinline__ uint32_t widen<__half>(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  // Moved to the places of a half's exponent and mantissa, the bits of a code are 2^-8 times its
  // value. After the product, a code of NaN is 480, which no other code is.
  const uint32_t spread = __byte_perm(codes, 0, 0x1404);
  const uint32_t bits = (spread & 0x80008000u) | (spread & 0x7f007f00u) >> 1;
  const __half2 pair = __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256.0f));
  const uint32_t nan = __heq2_mask(__habs2(pair), __float2half2_rn(480.0f));
  return *reinterpret_cast<const uint32_t*>(&pair) | (nan & 0x7fff7fffu);
#endif
}
template <>
__device__ __forceinline__ uint32_t widen<__nv_bfloat16>(uint32_t codes) {
  const float2 pair = unpack<__half>(widen<__half>(codes));
  return pack<__nv_bfloat16>(pair.x, pair.y);
}

// Converts four codes, those in the lower bytes first.
template <class T>
__device__ __forceinline__ uint2 widen_four(uint32_t codes) {
  return {widen<T>(codes & 0xffffu), widen<T>(codes >> 16)};
}

// Converts a register of load_transposed, which holds codes of two columns of two keys, to a pair
// of two keys for each column.
template <class T>
__device__ __forceinline__ uint2 widen_columns(uint32_t codes) {
  return widen_four<T>(__byte_perm(codes, 0, 0x3120));
}

}  // namespace fusewire::cuda
