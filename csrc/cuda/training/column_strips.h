// Sums of the columns of a matrix that a kernel reads, or that it computes and would otherwise be
// read again for its sums. A block has a strip of columns and a slab of rows, which its warps take
// in turn. Each slab leaves a row of sums, which are then added in order (column_totals.h).
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/column_totals.h"

namespace fusewire::cuda {

constexpr int kStripBlock = 256, kStripWarps = kStripBlock / kWarp;
constexpr int kStripBlocksPerSm = 4;  // they run at the same time with up to 64 registers a thread

struct ColumnStrips {
  int rows, cols, slab;
  float* sums;  // [slabs, cols], or the result of a single slab; null: not wanted
  bool accumulate;
};

// Calls load(row, column) and then values(loaded, row, column, v) for every kWidth columns of every
// row of the block; the sums are those of v[kWidth]. kTogether loads of a thread are in flight: a
// warp has few rows, so those after the last whole group must not wait for one another either.
template <int kWidth, int kTogether, class Load, class Values>
__device__ __forceinline__ void sum_strip(const ColumnStrips& s, Load&& load, Values&& values) {
  constexpr int kColumns = kWarp * kWidth;
  __shared__ float sums[kStripWarps][kColumns];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_column = blockIdx.x * kColumns, c = first_column + lane * kWidth;
  const int begin = blockIdx.y * s.slab, end = min(s.rows, begin + s.slab);
  float sum[kWidth] = {};
  if (c < s.cols) {
    for (int r = begin + warp; r < end; r += kTogether * kStripWarps) {
      decltype(load(r, c)) loaded[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = r + i * kStripWarps;
        if (row < end) loaded[i] = load(row, c);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = r + i * kStripWarps;
        if (row >= end) continue;
        float v[kWidth];
        values(loaded[i], row, c, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += v[j];
      }
    }
  }
  if (!s.sums) return;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sums[warp][lane * kWidth + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns; i += kStripBlock) {
    if (first_column + i >= s.cols) break;
    float total = sums[0][i];
#pragma unroll
    for (int w = 1; w < kStripWarps; ++w) total += sums[w][i];
    float* to = s.sums + static_cast<int64_t>(blockIdx.y) * s.cols + first_column + i;
    *to = s.accumulate ? *to + total : total;
  }
}

// Launches kernel(strips, arguments...), which calls sum_strip<kWidth>, and adds the sums of its
// slabs: out[cols] (+)= them; null: the sums are not wanted.
template <int kWidth, class Kernel, class... Arguments>
void launch_strips(Kernel* kernel, float* out, int64_t rows, int64_t cols, bool accumulate,
                   const Stream& stream, const Arguments&... arguments) {
  constexpr int64_t kStrip = kWarp * kWidth, kFewestRows = 4 * kStripWarps;
  const int64_t strips = (cols + kStrip - 1) / kStrip;
  const int64_t wanted = std::max<int64_t>(kStripBlocksPerSm * multiprocessors() / strips, 1);
  const int64_t slab = std::max((rows + wanted - 1) / wanted, kFewestRows);
  const int64_t slabs = std::max<int64_t>((rows + slab - 1) / slab, 1);
  const bool parts = out && slabs > 1;
  ColumnStrips s = {static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(slab), out,
                    accumulate && !parts};
  if (parts) s.sums = static_cast<float*>(kept_memory(stream, slabs * cols * sizeof(float)));
  launch(kernel, dim3(static_cast<unsigned>(strips), static_cast<unsigned>(slabs)), kStripBlock, 0,
         stream, s, arguments...);
  if (parts) add_parts({s.sums, slabs, cols, {out}, cols, accumulate}, stream);
}

}  // namespace fusewire::cuda
