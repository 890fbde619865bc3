// A row to e4m3 by the threads that hold it.
#pragma once

#include <cuda_fp8.h>

#include "cuda/gemm/quantize_rows.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

constexpr float kMostFloat8 = 448.0f;
constexpr float kLeastTop = 1e-30f;  // its reciprocal is finite

// Bits of magnitudes are in the order of the magnitudes, with infinity and then NaN above all: of
// these a maximum of floats would lose NaN.
template <int kThreads>
__device__ __forceinline__ unsigned reduce_bits(unsigned bits) {
  bits = __reduce_max_sync(kWholeWarp, bits);
  if constexpr (kThreads > kWarp) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ unsigned partial[kWarps];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = bits;
    __syncthreads();
    bits = __reduce_max_sync(kWholeWarp, partial[threadIdx.x % kWarp % kWarps]);
  }
  return bits;
}

struct RowScale {
  float scale, inverse;
};

__device__ __forceinline__ RowScale scale_of(unsigned bits, const float* given, int64_t row) {
  constexpr unsigned kInfinity = 0x7f800000u;
  if (bits >= kInfinity) return {__uint_as_float(0x7fc00000u), 0.0f};
  if (given != nullptr) return {given[row], __fdiv_rn(1.0f, given[row])};
  const float top = fmaxf(__uint_as_float(bits), kLeastTop);
  return {__fdiv_rn(top, kMostFloat8), __fdiv_rn(kMostFloat8, top)};
}

// An infinity times the inverse 0 is no number.
__device__ __forceinline__ float scaled(float x, const RowScale& s) {
  return s.inverse == 0.0f ? 0.0f : __fmul_rn(x, s.inverse);
}

// Row `row` of a.data and a.scales from the packs x, which are 0 beyond the columns.
template <class L, class T>
__device__ __forceinline__ void quantize_row(const QuantizeArguments& a, const RowPacks<L, T>& x,
                                             int64_t row) {
  static_assert(L::kWidth == 8);
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) {
    bits = max(bits, __float_as_uint(element<L, T>(x, i)) & 0x7fffffffu);
  }
  const RowScale s = scale_of(reduce_bits<L::kThreads>(bits), a.given, row);
  if (threadIdx.x % L::kThreads == 0) a.scales[row] = s.scale;
  const int padded = static_cast<int>(a.padded);
  uint8_t* out = a.data + row * padded;
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    uint32_t words[2];
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const auto pair = [&](int at) {
        const int e = i * 8 + j + at;
        return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(
            {scaled(element<L, T>(x, e), s), scaled(element<L, T>(x, e + 1), s)}, __NV_SATFINITE,
            __NV_E4M3));
      };
      words[j / 4] = pair(0) | pair(2) << 16;
    }
    if (L::column(i) >= padded) continue;
    *reinterpret_cast<uint2*>(out + L::column(i)) = make_uint2(words[0], words[1]);
  }
}

// Calls body(RowLayout) for the smallest layout of packs of 8 that holds rows of a.padded; false
// where none does, or `vectors` are not to be had.
template <class T, class Body>
bool with_quantized_layout(const QuantizeArguments& a, bool vectors, Body&& body) {
  if (!vectors || a.cols % Vector<T>::kSize != 0) return false;
  return with_row_layout<T>(a.padded, true, [&](auto layout) {
    using L = decltype(layout);
    if constexpr (L::kWidth == 8) body(layout);
  });
}

}  // namespace fusewire::cuda
