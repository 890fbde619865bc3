// Rows minus their log-sum-exp, in fp32 whatever type the input has: 16 bits would lose digits of
// what is later added to it (penalties, the score of a beam).
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {
namespace {

// A row is read twice, the second time from the caches. The sum of exponentials is kept relative to
// the largest element so far (Milakov & Gimelshein 2018).
template <class T>
__global__ void __launch_bounds__(kWideBlock)
    log_softmax_rows(float* out, int64_t out_stride, const T* x, int64_t x_stride, int cols) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  x += static_cast<int64_t>(blockIdx.x) * x_stride;
  out += static_cast<int64_t>(blockIdx.x) * out_stride;
  float top = -INFINITY, sum = 0.0f;
  for_values<2>(x, cols, -INFINITY, [&](int, float (&v)[n]) {
    const float before = top;
#pragma unroll
    for (int j = 0; j < n; ++j) top = fmaxf(top, v[j]);
    if (top == -INFINITY) {  // nothing to add, unless there is a NaN
#pragma unroll
      for (int j = 0; j < n; ++j) sum += isnan(v[j]) ? v[j] : 0.0f;
      return;
    }
    sum *= expf(before - top);
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = expf(v[j] - top);
    sum += reduce_thread(v, Sum{});
  });
  const float own = top;
  top = reduce<kWideBlock, 0>(top, Max{});
  const float share = own == -INFINITY ? sum : sum * expf(own - top);
  const float log_sum = logf(reduce<kWideBlock, 1>(share, Sum{}));
  for_values<2>(x, cols, 0.0f, [&](int c, float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = (v[j] - top) - log_sum;
    const bool whole = c >= 0 && c + n <= cols && reinterpret_cast<uintptr_t>(out + c) % 16 == 0;
    if (whole) {
#pragma unroll
      for (int j = 0; j < n; j += 4) {
        *reinterpret_cast<float4*>(out + c + j) = {v[j], v[j + 1], v[j + 2], v[j + 3]};
      }
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        if (c + j >= 0 && c + j < cols) out[c + j] = v[j];
      }
    }
  });
}

}  // namespace

template <class T>
void log_softmax(float* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                 int64_t cols, const Stream& stream) {
  launch(log_softmax_rows<T>, dim3(static_cast<unsigned>(rows)), kWideBlock, 0, stream, out,
         out_stride, static_cast<const T*>(x), x_stride, static_cast<int>(cols));
}

#define INSTANTIATE(T)                                                                  \
  template void log_softmax<T>(float*, int64_t, const void*, int64_t, int64_t, int64_t, \
                               const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
