// Rows divided by a sum over them: softmax, and the L2 norm.
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/row.h"

namespace fusewire::cuda {
namespace {

struct RowsArguments {
  void* out;
  const void* x;
  int64_t out_stride, x_stride, rows, cols;
};

// One over what a row is divided by.
__device__ __forceinline__ float l2_scale(float sum_of_squares) {
  const float norm = sqrtf(sum_of_squares);
  return 1.0f / (norm < 1e-12f ? 1e-12f : norm);  // a NaN stays
}

// e^(x - top), and 0 for x = top = -inf, which a thread may see before its row has anything else.
template <class T>
__device__ __forceinline__ float exp_below(float x, float top) {
  return exp_for<T>(x - (top == -INFINITY ? 0.0f : top));
}

template <class T, class L, bool kSoftmax>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) scale_rows(RowsArguments a) {
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const int64_t row = L::row();
  if (row >= a.rows) return;
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, kSoftmax ? -INFINITY : 0.0f);
  float v[L::kElements], scale;
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = to_float(x[i / L::kWidth].at[i % L::kWidth]);
  if constexpr (kSoftmax) {
    const float top = reduce<L::kThreads, 0>(reduce_thread(v, Max{}), Max{});
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) v[i] = exp_for<T>(v[i] - top);
    scale = 1.0f / reduce<L::kThreads, 1>(reduce_thread(v, Sum{}), Sum{});
  } else {
    float squares[L::kElements];
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) squares[i] = v[i] * v[i];
    scale = l2_scale(reduce<L::kThreads, 0>(reduce_thread(squares, Sum{}), Sum{}));
  }
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] *= scale;
  store_row<L>(static_cast<T*>(a.out) + row * a.out_stride, v, cols);
}

// Rows that no registers hold are read twice, the second time from the caches. The sum of
// exponentials is kept relative to the largest element so far (Milakov & Gimelshein 2018).
template <class T, bool kSoftmax>
__global__ void __launch_bounds__(kWideBlock, 3) scale_wide_rows(RowsArguments a) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const T* x = static_cast<const T*>(a.x) + blockIdx.x * a.x_stride;
  T* out = static_cast<T*>(a.out) + blockIdx.x * a.out_stride;
  float top = kSoftmax ? -INFINITY : 0.0f, sum = 0.0f;
  for_values<2>(x, cols, kSoftmax ? -INFINITY : 0.0f, [&](int, float (&v)[n]) {
    if constexpr (kSoftmax) {
      const float before = top;
#pragma unroll
      for (int j = 0; j < n; ++j) top = fmaxf(top, v[j]);
      sum *= exp_below<T>(before, top);
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = exp_below<T>(v[j], top);
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] *= v[j];
    }
    sum += reduce_thread(v, Sum{});
  });
  float scale;
  if constexpr (kSoftmax) {
    const float before = top;
    top = reduce<kWideBlock, 0>(top, Max{});
    scale = 1.0f / reduce<kWideBlock, 1>(sum * exp_below<T>(before, top), Sum{});
  } else {
    scale = l2_scale(reduce<kWideBlock, 0>(sum, Sum{}));
  }
  for_values<2>(x, cols, 0.0f, [&](int c, float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = (kSoftmax ? exp_for<T>(v[j] - top) : v[j]) * scale;
    write_part(out, v, c, cols);
  });
}

template <class T, bool kSoftmax>
void scale(const RowsArguments& a, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.out, a.out_stride);
  const bool held = with_row_layout<T>(a.cols, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(scale_rows<T, L, kSoftmax>, L::grid(a.rows), L::kBlock, 0, stream, a);
  });
  if (!held) launch(scale_wide_rows<T, kSoftmax>, a.rows, kWideBlock, 0, stream, a);
}

}  // namespace

template <class T>
void softmax(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
             int64_t cols, const Stream& stream) {
  scale<T, true>({out, x, out_stride, x_stride, rows, cols}, stream);
}

template <class T>
void l2_normalize(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                  int64_t cols, const Stream& stream) {
  scale<T, false>({out, x, out_stride, x_stride, rows, cols}, stream);
}

#define INSTANTIATE(T)                                                                             \
  template void softmax<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, const Stream&); \
  template void l2_normalize<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t,            \
                                const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
