// Sums of the columns of a matrix: the gradients of biases, and the second stage of other sums.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/training/column_strips.h"

namespace fusewire::cuda {
namespace {

constexpr int kSumBlock = 256, kSumWarps = kSumBlock / kWarp;

__global__ void __launch_bounds__(kSumBlock) total_columns(ColumnTotals a) {
  __shared__ float sums[kSumWarps][kWarp];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0.0f;
  if (c < a.width) {
#pragma unroll 8
    for (int64_t p = warp; p < a.count; p += kSumWarps) sum += a.parts[p * a.width + c];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || c >= a.width) return;
#pragma unroll
  for (int w = 1; w < kSumWarps; ++w) sum += sums[w][lane];
  const int which = (c >= a.cols) + (c >= 2 * a.cols);
  float* to = which == 0 ? a.outs[0] : which == 1 ? a.outs[1] : a.outs[2];
  if (!to) return;
  to += c - which * a.cols;
  *to = a.accumulate ? *to + sum : sum;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kStripBlock, kStripBlocksPerSm)
    sum_columns(ColumnStrips strips, const T* x, int64_t x_stride) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  sum_strip<kWidth, 4>(
      strips, [&](int r, int c) { return *reinterpret_cast<const P*>(x + r * x_stride + c); },
      [&](const P& pack, int, int, float (&v)[kWidth]) { widen(pack, v); });
}

}  // namespace

void add_parts(const ColumnTotals& a, const Stream& stream) {
  launch(total_columns, static_cast<unsigned>((a.width + kWarp - 1) / kWarp), kSumBlock, 0, stream,
         a);
}

template <class T>
void column_sums(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 bool accumulate, const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const T* const from = static_cast<const T*>(x);
  if (cols % n == 0 && vectors_fit<T>(x, x_stride)) {
    launch_strips<n>(sum_columns<T, n>, out, rows, cols, accumulate, stream, from, x_stride);
  } else {
    launch_strips<1>(sum_columns<T, 1>, out, rows, cols, accumulate, stream, from, x_stride);
  }
}

#define INSTANTIATE(T) \
  template void column_sums<T>(float*, const void*, int64_t, int64_t, int64_t, bool, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
