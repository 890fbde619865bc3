// Quantises a row to e4m3 or int8 in the threads that hold it in registers. Code is the element
// type; Float8Block stands for e4m3 in blocks.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>

#include "cuda/gemm/quantize_rows.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

// Returns the maximum over the row's kThreads threads. The bits of magnitudes have the order of the
// magnitudes, with infinity and then NaN above all; a maximum of floats would lose NaN.
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

// How a type is quantised. scale_of: the scale of a row whose largest magnitude is `top`. four:
// four elements, already divided by that scale, packed into 32 bits, the first in the lowest byte.
// one: one element, with saturation.
template <class Code>
struct Coding;

template <>
struct Coding<__nv_fp8_e4m3> {
  __device__ __forceinline__ static RowScale scale_of(float top) {
    constexpr float kMost = 448.0f, kLeastTop = 1e-30f;  // its reciprocal is finite
    top = fmaxf(top, kLeastTop);
    return {__fdiv_rn(top, kMost), __fdiv_rn(kMost, top)};
  }
  __device__ __forceinline__ static uint32_t four(float a, float b, float c, float d) {
    const auto pair = [](float low, float high) {
      return static_cast<uint32_t>(
          __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3));
    };
    return pair(a, b) | pair(c, d) << 16;
  }
  __device__ __forceinline__ static uint8_t one(float x) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  }
};

template <>
struct Coding<Float8Block> : Coding<__nv_fp8_e4m3> {
  // A thread computes several scales, with one division each.
  __device__ __forceinline__ static RowScale scale_of(float top) {
    constexpr float kMost = 448.0f, kLeastTop = 1e-30f;
    top = fmaxf(top, kLeastTop);
    return {top * (1.0f / kMost), __fdiv_rn(kMost, top)};
  }
};

template <>
struct Coding<int8_t> {
  // As on the CPU (cpu/int8_scale.h).
  __device__ __forceinline__ static RowScale scale_of(float top) {
    constexpr float kMost = 127.0f, kLeastTop = kMost * FLT_MIN;
    if (top < kLeastTop) return {0.0f, 0.0f};
    return {__fdiv_rn(top, kMost), __fdiv_rn(kMost, top)};
  }
  // The addition leaves the nearest integer in the low bits; conversions take twice as long.
  __device__ __forceinline__ static uint32_t four(float a, float b, float c, float d) {
    const auto bits = [](float x) { return __float_as_uint(__fadd_rn(x, 0x1.8p23f)); };
    const auto two = [&](float x, float y) { return __byte_perm(bits(x), bits(y), 0x0040); };
    return __byte_perm(two(a, b), two(c, d), 0x5410);
  }
  __device__ __forceinline__ static uint8_t one(float x) {
    return static_cast<uint8_t>(max(-128, min(127, __float2int_rn(x))));
  }
};

template <class Code>
__device__ __forceinline__ RowScale scale_of(unsigned bits, const QuantizeArguments& a,
                                             int64_t row) {
  constexpr unsigned kInfinity = 0x7f800000u;
  if (bits >= kInfinity) return {__uint_as_float(0x7fc00000u), 0.0f};
  if (a.given != nullptr) return {a.given[row], __fdiv_rn(1.0f, a.given[row])};
  if (a.input_scale != 0.0f) return {a.input_scale, __fdiv_rn(1.0f, a.input_scale)};
  return Coding<Code>::scale_of(__uint_as_float(bits));
}

// Returns the larger magnitudes of two pairs of T, as bits.
__device__ __forceinline__ uint32_t larger(uint32_t magnitudes, uint32_t pair) {
  return __vmaxu2(magnitudes, pair & 0x7fff7fffu);
}

// As above, over the four pairs of pack i.
template <class L, class T>
__device__ __forceinline__ uint32_t larger(uint32_t magnitudes, const RowPacks<L, T>& x, int i) {
  const uint4 words = reinterpret_cast<const uint4&>(x[i]);
  magnitudes = larger(larger(magnitudes, words.x), words.y);
  return larger(larger(magnitudes, words.z), words.w);
}

// Stores pack i times `inverse` to the row `out`.
template <class Code, class L, class T>
__device__ __forceinline__ void store_codes(uint8_t* out, int padded, const RowPacks<L, T>& x,
                                            int i, float inverse) {
  uint32_t words[2];
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    const auto at = [&](int e) { return __fmul_rn(element<L, T>(x, i * 8 + j + e), inverse); };
    const uint32_t four = Coding<Code>::four(at(0), at(1), at(2), at(3));
    words[j / 4] = inverse == 0.0f ? 0 : four;  // infinity times 0 is NaN, not 0
  }
  if (L::column(i) >= padded) return;
  *reinterpret_cast<uint2*>(out + L::column(i)) = make_uint2(words[0], words[1]);
}

// Writes row `row` of a.data and a.scales from the packs x, which are 0 beyond the columns.
template <class Code, class L, class T>
__device__ __forceinline__ void quantize_row(const QuantizeArguments& a, const RowPacks<L, T>& x,
                                             int64_t row) {
  static_assert(L::kWidth == 8);
  static_assert(sizeof(T) == 2);
  const int padded = static_cast<int>(a.padded);
  uint8_t* out = a.data + row * padded;
  const auto bits_of = [](unsigned top) { return __float_as_uint(unpack<T>(top).x); };
  if constexpr (kInBlocks<Code>) {  // 16 neighbouring threads hold a block
    constexpr int kBlockThreads = kFloat8Block / 8;
    static_assert(L::kThreads % kBlockThreads == 0);
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) {
      const uint32_t pairs = larger<L, T>(0, x, i);
      unsigned top = max(pairs >> 16, pairs & 0xffffu);
#pragma unroll
      for (int lanes = kBlockThreads / 2; lanes > 0; lanes /= 2) {
        top = max(top, __shfl_xor_sync(kWholeWarp, top, lanes));
      }
      const RowScale s = scale_of<Code>(bits_of(top), a, row);
      if (threadIdx.x % kBlockThreads == 0 && L::column(i) < padded) {
        a.scales[a.scale_place(L::column(i) / kFloat8Block, row)] = s.scale;
      }
      store_codes<Code, L, T>(out, padded, x, i, s.inverse);
    }
  } else {
    uint32_t pairs = 0;
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) pairs = larger<L, T>(pairs, x, i);
    const unsigned top = reduce_bits<L::kThreads>(max(pairs >> 16, pairs & 0xffffu));
    const RowScale s = scale_of<Code>(bits_of(top), a, row);
    if (threadIdx.x % L::kThreads == 0) a.scales[row] = s.scale;
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) store_codes<Code, L, T>(out, padded, x, i, s.inverse);
  }
}

// Calls body(RowLayout) for the smallest layout of packs of 8 that holds rows of a.padded columns.
// Returns false if there is none, or if the data is not aligned for `vectors`.
template <class T, class Body>
bool with_quantized_layout(const QuantizeArguments& a, bool vectors, Body&& body) {
  if (!vectors || a.cols % Vector<T>::kSize != 0) return false;
  return with_row_layout<T>(a.padded, true, [&](auto layout) {
    using L = decltype(layout);
    if constexpr (L::kWidth == 8) body(layout);
  });
}

}  // namespace fusewire::cuda
