// Gradients of norms over rows that do not fit in registers: first the statistics of rows, then
// dweight and dbias, and last dx, because it may overwrite dy.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/column_totals.h"
#include "cuda/training/norm_backward.h"

namespace fusewire::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kWideBlock)
    wide_statistics(NormBackwardArguments a, int heads, bool centered, RowStatistics* out) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const T* x = static_cast<const T*>(a.x) + row_offset(blockIdx.x, a.x_stride, heads, cols);
  const T* dy = static_cast<const T*>(a.dy) + row_offset(blockIdx.x, a.dy_stride, heads, cols);
  const float per_column = 1.0f / static_cast<float>(cols);
  RowStatistics s = {};
  if (centered) {
    float sum = 0.0f;
    for_values<2>(x, cols, 0.0f, [&](int, const float (&v)[n]) {
#pragma unroll
      for (int j = 0; j < n; ++j) sum += v[j];
    });
    s.mean = reduce<kWideBlock, 0>(sum, Sum{}) * per_column;
  }
  float sums[4] = {};  // sums of d^2, g d, g and d
  for_vectors(x, cols, [&](int c) {
    float v[n], d[n], w[n];
    read_part(v, x, c, cols, s.mean);
    read_part(d, dy, c, cols, 0.0f);
    read_part(w, static_cast<const T*>(a.weight), c, cols, 0.0f);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float deviation = v[j] - s.mean, g = d[j] * w[j];
      sums[0] = fmaf(deviation, deviation, sums[0]);
      sums[1] = fmaf(g, deviation, sums[1]);
      sums[2] += g;
      sums[3] += deviation;
    }
  });
  reduce<kWideBlock, 1>(sums, Sum{});
  if (threadIdx.x > 0) return;
  s.set(sums, centered, per_column, a.eps);
  out[blockIdx.x] = s;
}

constexpr int kWideColumns = 256;

template <class T>
__global__ void __launch_bounds__(kWideColumns)
    wide_parameters(NormBackwardArguments a, int heads, bool centered, const RowStatistics* rows,
                    int64_t rows_of_block, float* parts) {
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols), c = blockIdx.x * kWideColumns + threadIdx.x;
  if (c >= cols) return;
  const int64_t end = min(a.rows, (blockIdx.y + 1) * rows_of_block);
  float dweight = 0.0f, dbias = 0.0f;
#pragma unroll 4
  for (int64_t r = blockIdx.y * rows_of_block; r < end; ++r) {
    const float x =
        to_float(static_cast<const T*>(a.x)[row_offset(r, a.x_stride, heads, cols) + c]);
    const float d =
        to_float(static_cast<const T*>(a.dy)[row_offset(r, a.dy_stride, heads, cols) + c]);
    dweight = fmaf(d, (x - rows[r].mean - rows[r].left) * rows[r].scale, dweight);
    dbias += d;
  }
  parts += blockIdx.y * static_cast<int64_t>(centered ? 2 * cols : cols);
  parts[c] = dweight;
  if (centered) parts[cols + c] = dbias;
}

template <class T>
__global__ void __launch_bounds__(kWideBlock)
    wide_inputs(NormBackwardArguments a, int heads, const RowStatistics* rows) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const T* x = static_cast<const T*>(a.x) + row_offset(blockIdx.x, a.x_stride, heads, cols);
  const T* dy = static_cast<const T*>(a.dy) + row_offset(blockIdx.x, a.dy_stride, heads, cols);
  const T* residual =
      static_cast<const T*>(a.dresidual) + row_offset(blockIdx.x, a.dresidual_stride, heads, cols);
  T* dx = static_cast<T*>(a.dx) + row_offset(blockIdx.x, a.dx_stride, heads, cols);
  const RowStatistics s = rows[blockIdx.x];
  for_vectors(x, cols, [&](int c) {
    float v[n], d[n], w[n], more[n] = {};
    read_part(v, x, c, cols, 0.0f);
    read_part(d, dy, c, cols, 0.0f);
    read_part(w, static_cast<const T*>(a.weight), c, cols, 0.0f);
    if (a.dresidual) read_part(more, residual, c, cols, 0.0f);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float normed = (v[j] - s.mean - s.left) * s.scale;
      v[j] = s.dx(d[j], w[j], normed) + more[j];
    }
    write_part(dx, v, c, cols);
  });
}

}  // namespace

template <class T>
void wide_norm_backward(const NormBackwardArguments& a, int heads, bool centered,
                        const Stream& stream) {
  constexpr int64_t kFewestRows = 64, kMostSlabs = 64;
  const int64_t width = centered ? 2 * a.cols : a.cols;
  const int64_t slab = std::max((a.rows + kMostSlabs - 1) / kMostSlabs, kFewestRows);
  const int64_t slabs = (a.rows + slab - 1) / slab;
  const size_t statistics = sizeof(RowStatistics) * a.rows;
  char* memory =
      static_cast<char*>(kept_memory(stream, statistics + sizeof(float) * slabs * width));
  auto* rows = reinterpret_cast<RowStatistics*>(memory);
  auto* parts = reinterpret_cast<float*>(memory + statistics);
  const dim3 each_row(static_cast<unsigned>(a.rows));
  if (a.rows > 0) {
    launch(wide_statistics<T>, each_row, kWideBlock, 0, stream, a, heads, centered, rows);
    launch(wide_parameters<T>,
           dim3(static_cast<unsigned>((a.cols + kWideColumns - 1) / kWideColumns),
                static_cast<unsigned>(slabs)),
           kWideColumns, 0, stream, a, heads, centered, rows, slab, parts);
    launch(wide_inputs<T>, each_row, kWideBlock, 0, stream, a, heads, rows);
  }
  add_parts({parts, slabs, width, {a.dweight, a.dbias}, a.cols, a.accumulate}, stream);
}

#define INSTANTIATE(T) \
  template void wide_norm_backward<T>(const NormBackwardArguments&, int, bool, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
