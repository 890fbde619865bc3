// Sums of the columns of a matrix: the gradients of biases, and the second stage of other sums.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/column_totals.h"

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
  float* to = c < a.cols ? a.out + c : a.second ? a.second + (c - a.cols) : nullptr;
  if (to) *to = a.accumulate ? *to + sum : sum;
}

// A block sums rows_of_block rows of 32 * kWidth columns; its warps take the rows in turn.
template <class T, int kWidth>
__global__ void __launch_bounds__(kSumBlock)
    sum_columns(float* out, const T* x, int64_t x_stride, int64_t rows, int64_t cols,
                int64_t rows_of_block, bool accumulate) {
  using P = Pack<T, kWidth>;
  constexpr int kColumns = kWarp * kWidth, kTogether = 4;
  __shared__ float sums[kSumWarps][kColumns];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t c = first_column + lane * kWidth;
  const int64_t end = min(rows, (blockIdx.y + 1) * rows_of_block);
  float sum[kWidth] = {};
  if (c < cols) {
    int64_t r = blockIdx.y * rows_of_block + warp;
    for (; r + (kTogether - 1) * kSumWarps < end; r += kTogether * kSumWarps) {
      P packs[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        packs[i] = *reinterpret_cast<const P*>(x + (r + i * kSumWarps) * x_stride + c);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += to_float(packs[i].at[j]);
      }
    }
    for (; r < end; r += kSumWarps) {
      const P pack = *reinterpret_cast<const P*>(x + r * x_stride + c);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += to_float(pack.at[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sums[warp][lane * kWidth + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns; i += kSumBlock) {
    if (first_column + i >= cols) break;
    float total = sums[0][i];
#pragma unroll
    for (int w = 1; w < kSumWarps; ++w) total += sums[w][i];
    float* to = out + blockIdx.y * cols + first_column + i;
    *to = accumulate ? *to + total : total;
  }
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
  constexpr int64_t kFewestRows = 4 * kSumWarps, kBlocksPerSm = 4;
  const bool vectors = cols % n == 0 && vectors_fit<T>(x, x_stride);
  const int64_t strip = kWarp * (vectors ? n : 1), strips = (cols + strip - 1) / strip;
  const int64_t wanted = std::max<int64_t>(kBlocksPerSm * multiprocessors() / strips, 1);
  const int64_t slab = std::max((rows + wanted - 1) / wanted, kFewestRows);
  const int64_t slabs = std::max<int64_t>((rows + slab - 1) / slab, 1);
  float* parts = out;
  if (slabs > 1) {
    parts = static_cast<float*>(kept_memory(stream, slabs * cols * sizeof(float)));
  }
  launch(vectors ? sum_columns<T, n> : sum_columns<T, 1>,
         dim3(static_cast<unsigned>(strips), static_cast<unsigned>(slabs)), kSumBlock, 0, stream,
         parts, static_cast<const T*>(x), x_stride, rows, cols, slab, accumulate && slabs == 1);
  if (slabs > 1) add_parts({parts, slabs, cols, out, nullptr, cols, accumulate}, stream);
}

#define INSTANTIATE(T) \
  template void column_sums<T>(float*, const void*, int64_t, int64_t, int64_t, bool, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
