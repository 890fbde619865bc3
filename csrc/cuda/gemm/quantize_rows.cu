#include "core/raw_memory.h"
#include "cuda/activation.h"
#include "cuda/gemm/quantize_row.h"
#include "cuda/kernels.h"
#include "cuda/runtime/kept_memory.h"

namespace fusewire::cuda {
namespace {

constexpr int kWideThreads = 256;  // for a row that fits no layout or is not aligned

template <class T, class Code, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) quantize_kernel(QuantizeArguments a) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = L::row();
  if (row >= a.rows) return;
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, static_cast<int>(a.cols), 0.0f);
  quantize_row<Code, L, T>(a, x, row);
}

// kDivides: divides by the scale instead of multiplying by its reciprocal.
template <class T, class Code, bool kDivides>
__global__ void __launch_bounds__(kWideThreads) quantize_wide_kernel(QuantizeArguments a) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  unsigned bits = 0;
  for (int64_t c = threadIdx.x; c < a.cols; c += kWideThreads) {
    bits = max(bits, __float_as_uint(to_float(x[c])) & 0x7fffffffu);
  }
  const RowScale s = scale_of<Code>(reduce_bits<kWideThreads>(bits), a, row);
  if (threadIdx.x == 0) a.scales[row] = s.scale;
  for (int64_t c = threadIdx.x; c < a.padded; c += kWideThreads) {
    float down = 0.0f;
    if (c < a.cols && s.inverse != 0.0f) {
      down = kDivides ? __fdiv_rn(to_float(x[c]), s.scale) : __fmul_rn(to_float(x[c]), s.inverse);
    }
    a.data[row * a.padded + c] = Coding<Code>::one(down);
  }
}

// A warp quantises a block at a time.
template <class T>
__global__ void __launch_bounds__(kWideThreads) quantize_wide_blocks_kernel(QuantizeArguments a) {
  constexpr int kNumbers = kFloat8Block / kWarp;
  static_assert(kNumbers == 4);
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  const int lane = threadIdx.x % kWarp;
  for (int64_t block = threadIdx.x / kWarp; block * kFloat8Block < a.padded;
       block += kWideThreads / kWarp) {
    const int64_t column = block * kFloat8Block + lane * kNumbers;
    float v[kNumbers];
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      v[i] = column + i < a.cols ? to_float(x[column + i]) : 0.0f;
      bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    const RowScale s = scale_of<Float8Block>(reduce_bits<kWarp>(bits), a, row);
    if (lane == 0) a.scales[a.scale_place(block, row)] = s.scale;
    const auto at = [&](int i) { return __fmul_rn(v[i], s.inverse); };
    const uint32_t four = Coding<Float8Block>::four(at(0), at(1), at(2), at(3));
    if (column >= a.padded) continue;
    *reinterpret_cast<uint32_t*>(a.data + row * a.padded + column) = s.inverse == 0.0f ? 0 : four;
  }
}

template <Activation kActivation, bool kGated, class L, class T>
__device__ __forceinline__ void activate_row(RowPacks<L, T>& x, const RowPacks<L, T>& factors) {
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    Pack<T, L::kWidth> made;
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) {
      const int e = i * L::kWidth + j;
      float y = activated<T>(element<L, T>(x, e), kActivation);
      if constexpr (kGated) y *= element<L, T>(factors, e);
      made.at[j] = from_float<T>(y);
    }
    x[i] = made;
  }
}

// The branch is outside of the unrolled loops. The activation's result is rounded to T, as if it
// were an op of its own.
template <class T, class Code, class L, bool kGated>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    quantize_activated_kernel(QuantizeArguments a, Activation activation) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = L::row();
  if (row >= a.rows) return;
  const int cols = static_cast<int>(a.cols);
  const T* from = static_cast<const T*>(a.x) + row * a.x_stride;
  RowPacks<L, T> x, factors;
  load_row<L>(x, from, cols, 0.0f);
  if constexpr (kGated) load_row<L>(factors, from + cols, cols, 0.0f);
  switch (activation) {
#define CASE(name)                                            \
  case Activation::name:                                      \
    activate_row<Activation::name, kGated, L, T>(x, factors); \
    break;
    CASE(kNone)
    CASE(kGeluErf)
    CASE(kGeluTanh)
    CASE(kRelu)
    CASE(kSilu)
    CASE(kTanh)
#undef CASE
  }
  quantize_row<Code, L, T>(a, x, row);
}

}  // namespace

template <class T, class Code>
void quantize_rows(const QuantizeArguments& a, const Stream& stream) {
  const bool held = with_quantized_layout<T>(a, vectors_fit<T>(a.x, a.x_stride), [&](auto layout) {
    using L = decltype(layout);
    launch(quantize_kernel<T, Code, L>, L::grid(a.rows), L::kBlock, 0, stream, a);
  });
  if (held) return;
  const auto wide = [] {
    if constexpr (kInBlocks<Code>) {
      return quantize_wide_blocks_kernel<T>;
    } else {
      return quantize_wide_kernel<T, Code, false>;
    }
  }();
  launch(wide, static_cast<unsigned>(a.rows), kWideThreads, 0, stream, a);
}

template <class T>
void quantize_int8_weights(const QuantizeArguments& a, const Stream& stream) {
  launch(quantize_wide_kernel<T, int8_t, true>, static_cast<unsigned>(a.rows), kWideThreads, 0,
         stream, a);
}

template <class T, class Code>
void quantize_activated(const QuantizeArguments& a, Activation activation, bool gated,
                        const Stream& stream) {
  const bool held = with_quantized_layout<T>(a, vectors_fit<T>(a.x, a.x_stride), [&](auto layout) {
    using L = decltype(layout);
    const auto kernel = gated ? quantize_activated_kernel<T, Code, L, true>
                              : quantize_activated_kernel<T, Code, L, false>;
    launch(kernel, L::grid(a.rows), L::kBlock, 0, stream, a, activation);
  });
  if (held) return;
  void* x = const_cast<void*>(a.x);
  const auto make = gated ? gate<T> : activate<T>;
  make(x, a.x_stride, x, a.x_stride, a.rows, a.cols, activation, stream);
  quantize_rows<T, Code>(a, stream);
}

QuantizedRows quantized_rows_of(const Stream& stream, int64_t rows, int64_t padded,
                                int64_t scales) {
  const size_t data = round_up(static_cast<size_t>(rows * padded), 128);
  const size_t scale_bytes = static_cast<size_t>(scales + kScalesBeyond) * sizeof(float);
  auto* memory = static_cast<uint8_t*>(kept_memory(stream, data + scale_bytes));
  return {memory, reinterpret_cast<float*>(memory + data)};
}

#define INSTANTIATE(T, Code)                                                            \
  template void quantize_rows<T, Code>(const QuantizeArguments&, const Stream&);        \
  template void quantize_activated<T, Code>(const QuantizeArguments&, Activation, bool, \
                                            const Stream&);
INSTANTIATE(__half, __nv_fp8_e4m3)
INSTANTIATE(__nv_bfloat16, __nv_fp8_e4m3)
INSTANTIATE(__half, Float8Block)
INSTANTIATE(__nv_bfloat16, Float8Block)
INSTANTIATE(__half, int8_t)
INSTANTIATE(__nv_bfloat16, int8_t)
#undef INSTANTIATE
template void quantize_int8_weights<__half>(const QuantizeArguments&, const Stream&);
template void quantize_int8_weights<__nv_bfloat16>(const QuantizeArguments&, const Stream&);

}  // namespace fusewire::cuda
