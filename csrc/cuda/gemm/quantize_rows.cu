#include <cuda_fp8.h>

#include "core/raw_memory.h"
#include "cuda/gemm/quantize_rows.h"
#include "cuda/rows/row.h"
#include "cuda/runtime/kept_memory.h"

namespace fusewire::cuda {
namespace {

constexpr float kMost = 448.0f;    // of e4m3
constexpr float kLeast = 1e-30f;   // top: its reciprocal is finite
constexpr int kWideThreads = 256;  // of a row that no layout holds or that is not aligned

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
  const float top = fmaxf(__uint_as_float(bits), kLeast);
  return {__fdiv_rn(top, kMost), __fdiv_rn(kMost, top)};
}

__device__ __forceinline__ uint8_t to_float8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// An infinity times the inverse 0 is no number.
__device__ __forceinline__ float scaled(float x, const RowScale& s) {
  return s.inverse == 0.0f ? 0.0f : __fmul_rn(x, s.inverse);
}

template <class T, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) quantize_kernel(QuantizeArguments a) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = L::row();
  if (row >= a.rows) return;
  const int cols = static_cast<int>(a.cols), padded = static_cast<int>(a.padded);
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, 0.0f);
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) {
    bits = max(bits, __float_as_uint(element<L, T>(x, i)) & 0x7fffffffu);
  }
  const RowScale s = scale_of(reduce_bits<L::kThreads>(bits), a.given, row);
  if (threadIdx.x % L::kThreads == 0) a.scales[row] = s.scale;
  uint8_t* out = a.data + row * padded;
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    uint32_t words[L::kWidth / 4];
#pragma unroll
    for (int j = 0; j < L::kWidth; j += 4) {
      const auto pair = [&](int at) {
        const int e = i * L::kWidth + j + at;
        return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(
            {scaled(element<L, T>(x, e), s), scaled(element<L, T>(x, e + 1), s)}, __NV_SATFINITE,
            __NV_E4M3));
      };
      words[j / 4] = pair(0) | pair(2) << 16;
    }
    if (L::column(i) >= padded) continue;
    static_assert(L::kWidth == 8);
    *reinterpret_cast<uint2*>(out + L::column(i)) = make_uint2(words[0], words[1]);
  }
}

template <class T>
__global__ void __launch_bounds__(kWideThreads) quantize_wide_kernel(QuantizeArguments a) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  unsigned bits = 0;
  for (int64_t c = threadIdx.x; c < a.cols; c += kWideThreads) {
    bits = max(bits, __float_as_uint(to_float(x[c])) & 0x7fffffffu);
  }
  const RowScale s = scale_of(reduce_bits<kWideThreads>(bits), a.given, row);
  if (threadIdx.x == 0) a.scales[row] = s.scale;
  for (int64_t c = threadIdx.x; c < a.padded; c += kWideThreads) {
    a.data[row * a.padded + c] = to_float8(c < a.cols ? scaled(to_float(x[c]), s) : 0.0f);
  }
}

}  // namespace

template <class T>
void quantize_rows(const QuantizeArguments& a, const Stream& stream) {
  const bool vectors = vectors_fit<T>(a.x, a.x_stride) && a.cols % Vector<T>::kSize == 0;
  const bool held = vectors && with_row_layout<T>(a.padded, true, [&](auto layout) {
                      using L = decltype(layout);
                      if constexpr (L::kWidth == Vector<T>::kSize) {
                        launch(quantize_kernel<T, L>, L::grid(a.rows), L::kBlock, 0, stream, a);
                      }
                    });
  if (held) return;
  launch(quantize_wide_kernel<T>, static_cast<unsigned>(a.rows), kWideThreads, 0, stream, a);
}

QuantizedRows quantized_rows_of(const Stream& stream, int64_t rows, int64_t padded) {
  const size_t data = round_up(static_cast<size_t>(rows * padded), 128);
  const size_t scales = static_cast<size_t>(rows + kScalesBeyond) * sizeof(float);
  auto* memory = static_cast<uint8_t*>(kept_memory(stream, data + scales));
  return {memory, reinterpret_cast<float*>(memory + data)};
}

#define INSTANTIATE(T) template void quantize_rows<T>(const QuantizeArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
