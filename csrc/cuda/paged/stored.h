// Numbers in the pages of a cache: of the type that is computed in, or codes of float8 e4m3
// (Micikevicius et al. 2022, FP8 Formats for Deep Learning), and these back in 16 bits.
#pragma once

#include <type_traits>

#include "cuda/element.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

using Float8 = __nv_fp8_e4m3;

// What pages hold of numbers of T: in float8 x / scale to the nearest, at most 448, NaN as NaN.
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

// Codes in the two low bytes as numbers of T, the first in the low half: exact.
template <class T>
__device__ __forceinline__ uint32_t widen(uint32_t codes);
template <>
__device__ __forceinline__ uint32_t widen<__half>(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  // Exponent and mantissa at their places in a half are 2^-8 of the number, and of NaN 480.
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

// Four codes, those in the lower bytes first.
template <class T>
__device__ __forceinline__ uint2 widen_four(uint32_t codes) {
  return {widen<T>(codes & 0xffffu), widen<T>(codes >> 16)};
}

// What load_transposed gives of codes, two columns of two keys, as two keys of either column.
template <class T>
__device__ __forceinline__ uint2 widen_columns(uint32_t codes) {
  return widen_four<T>(__byte_perm(codes, 0, 0x3120));
}

}  // namespace fusewire::cuda
