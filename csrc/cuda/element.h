// The element types of the kernels, and 16-byte vectors of elements. Wherever possible, a thread
// accesses device memory one such vector at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/dtype.h"

namespace fusewire::cuda {

template <class T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<__half> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 x) {
  return static_cast<float>(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}

// Rounds two floats to T and packs them into one register, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Returns the two elements that pack() combined, the one in the low half first.
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<__half>(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// 16 bytes of T: 4 elements of fp32 or 8 elements of 16 bits.
template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];

  __device__ __forceinline__ static Vector load(const T* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
};

// Returns whether rows at `data`, `stride` elements apart, can be read as vectors.
template <class T>
bool vectors_fit(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % Vector<T>::kSize == 0;
}

}  // namespace fusewire::cuda

// Expands INSTANTIATE(T), a macro with one parameter, for each element type: explicit
// instantiations of the templates that a file of kernels defines.
#define FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE) \
  INSTANTIATE(float)                         \
  INSTANTIATE(__half)                        \
  INSTANTIATE(__nv_bfloat16)
