// Sums of the columns of a matrix: the gradients of biases, and the second stage of other sums.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/training/column_strips.h"

namespace fusewire::cuda {
namespace {

// A column has few parts, one to four for each multiprocessor: the time of a sum is that of the
// loads that wait for one another. So a block loads the parts of its 32 columns before it adds
// them, up to 192 at a time. It takes 32 registers a thread: so it finds room on a multiprocessor
// beside the blocks of sum_columns, which take 48, and has started when they end.
constexpr int kTotalBlock = 512, kTotalWarps = kTotalBlock / kWarp, kPartsOfWarp = 12;

__global__ void __launch_bounds__(kTotalBlock, 4) total_columns(ColumnTotals a) {
  __shared__ float sums[kTotalWarps][kWarp];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int c = blockIdx.x * kWarp + lane, cols = static_cast<int>(a.cols);
  const int which = (c >= cols) + (c >= 2 * cols);
  float* to = which == 0 ? a.outs[0] : which == 1 ? a.outs[1] : a.outs[2];
  if (to) to += c - which * cols;
  const bool writes = warp == 0 && c < a.width && to;
  const float before = writes && a.accumulate ? *to : 0.0f;
  float sum = 0.0f;
  if (c < a.width) {
    const int count = static_cast<int>(a.count);
    for (int first = warp; first < count; first += kPartsOfWarp * kTotalWarps) {
      float parts[kPartsOfWarp];
#pragma unroll
      for (int i = 0; i < kPartsOfWarp; ++i) {
        const int p = first + i * kTotalWarps;
        parts[i] = p < count ? a.parts[p * a.width + c] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kPartsOfWarp; ++i) sum += parts[i];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (!writes) return;
#pragma unroll
  for (int w = 1; w < kTotalWarps; ++w) sum += sums[w][lane];
  *to = before + sum;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kStripBlock, kStripBlocksPerSm + 1)
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
  launch(total_columns, static_cast<unsigned>((a.width + kWarp - 1) / kWarp), kTotalBlock, 0,
         stream, a);
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
