// Shared by the kernels of the backward pass of norms: a row, its sums and statistics.
#pragma once

#include "core/training_kernels.h"
#include "cuda/rows/norm.h"

namespace fusewire::cuda {

// Returns the offset of row r of a matrix whose rows have `heads` of them each.
__device__ __forceinline__ int64_t row_offset(int64_t row, int64_t stride, int heads, int cols) {
  if (heads == 1) return row * stride;
  const unsigned r = static_cast<unsigned>(row), h = static_cast<unsigned>(heads);
  return r / h * stride + r % h * cols;
}

// The statistics of a row from which dx is computed; n = (x - mean - left) * scale, where `left` is
// the rounding error of the mean.
struct RowStatistics {
  float mean, left, scale, g_mean, gn_mean;

  // Computes them from the sums of d^2, g d, g and d, where d = x - mean and g = dy * weight.
  __device__ __forceinline__ void set(const float (&sums)[4], bool centered, float per_column,
                                      float eps) {
    left = centered ? sums[3] * per_column : 0.0f;
    scale = row_scale(sums[0] * per_column, left, eps);
    g_mean = centered ? sums[2] * per_column : 0.0f;
    gn_mean = scale * (sums[1] - left * sums[2]) * per_column;
  }
  // The product is rounded before the mean is subtracted, so that dx of a single column is exactly
  // 0.
  __device__ __forceinline__ float dx(float dy, float weight, float n) const {
    return (__fmul_rn(dy, weight) - g_mean - n * gn_mean) * scale;
  }
};

// One block per multiprocessor processes rows in groups of L::kThreads threads, one row each. It
// accumulates their contributions to dweight and dbias in registers: two values per column, beside
// the row.
template <class L>
struct NormGroups {
  // Limits the registers of a thread to 64, 128 and 168.
  static constexpr int kThreads = L::kElements <= 8 ? 1024 : L::kElements <= 16 ? 512 : 384;
  static constexpr int kCount = kThreads / L::kThreads;
  static constexpr int kBlock = kCount * L::kThreads;
  static constexpr int kColumns = L::kElements * L::kThreads;
  static constexpr size_t kSharedBytes = sizeof(float) * kCount * kColumns;  // at most 48 KiB
};

// Sums of a third value per column are in shared memory, for which registers are not left: each
// thread adds to its own, four elements at a time, which lie beside those of the next thread.
template <class L>
struct SharedSums {
  using G = NormGroups<L>;
  static constexpr int kQuads = L::kElements / 4;

  __device__ __forceinline__ static float4* of_thread() {
    extern __shared__ float4 shared_memory[];
    return shared_memory + threadIdx.x / L::kThreads * kQuads * L::kThreads +
           threadIdx.x % L::kThreads;
  }
  __device__ __forceinline__ static void clear() {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) of_thread()[q * L::kThreads] = {};
  }
  // v: the elements of pack i.
  __device__ __forceinline__ static void add(int i, const float (&v)[L::kWidth]) {
#pragma unroll
    for (int j = 0; j < L::kWidth; j += 4) {
      float4& sum = of_thread()[(i * L::kWidth + j) / 4 * L::kThreads];
      const float4 old = sum;
      sum = {old.x + v[j], old.y + v[j + 1], old.z + v[j + 2], old.w + v[j + 3]};
    }
  }
  // Returns the sum of column c over the groups of the block.
  __device__ __forceinline__ static float of_column(int c) {
    extern __shared__ float4 shared_memory[];
    const int pack = c / L::kWidth, thread = pack % L::kThreads;
    const int quad = (pack / L::kThreads * L::kWidth + c % L::kWidth) / 4;
    const float* first =
        reinterpret_cast<const float*>(shared_memory + quad * L::kThreads + thread) + c % 4;
    float sum = *first;
    for (int g = 1; g < G::kCount; ++g) sum += first[g * G::kColumns];
    return sum;
  }
};

// Sums over the threads of a group. `slot` alternates from one reduction to the next: slower warps
// may still read the partial results of the previous one.
template <class L, int kValues>
__device__ __forceinline__ void group_sums(float (&x)[kValues], int& slot) {
  constexpr int kLanes = L::kThreads < kWarp ? L::kThreads : kWarp;
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] = reduce_lanes<kLanes>(x[i], Sum{});
  if constexpr (L::kThreads > kWarp) {
    constexpr int kWarps = L::kThreads / kWarp;
    __shared__ float partial[2][NormGroups<L>::kCount][kValues][kWarps];
    const int group = threadIdx.x / L::kThreads, lane = threadIdx.x % kWarp;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        partial[slot][group][i][threadIdx.x % L::kThreads / kWarp] = x[i];
      }
    }
    // Barrier 0 is that of the whole block.
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(L::kThreads) : "memory");
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      x[i] = reduce_lanes<kWarps>(partial[slot][group][i][lane % kWarps], Sum{});
    }
    slot ^= 1;
  }
}

// Keeps the compiler from holding loaded or converted values in additional registers: a row of
// 16-bit elements takes twice as many in fp32, and weights are loaded again from L1.
template <class L, class T>
__device__ __forceinline__ void forget_widened(RowPacks<L, T>& row) {
  if constexpr (sizeof(Pack<T, L::kWidth>) == 16) {
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) {
      uint4& words = reinterpret_cast<uint4&>(row[i]);
      asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)::"memory");
    }
  }
}

// As with_row_layout, but a warp has several narrow rows (heads).
template <class T, class Body>
bool with_norm_layout(int64_t cols, bool vectors, Body&& body) {
  constexpr int n = Vector<T>::kSize, e = 8 / n;  // e: vectors that hold 8 elements
  if (!vectors) {
    return with_first_layout<RowLayout<1, 8, 8>, RowLayout<1, 8, 32>, RowLayout<1, 16, 64>,
                             RowLayout<1, 16, 256>>(cols, body);
  }
  return with_first_layout<RowLayout<n, e, 8>, RowLayout<n, e, 16>, RowLayout<n, e, 32>,
                           RowLayout<n, 2 * e, 32>, RowLayout<n, 3 * e, 32>,
                           RowLayout<n, 2 * e, 64>, RowLayout<n, 2 * e, 128>,
                           RowLayout<n, 2 * e, 256>, RowLayout<n, 2 * e, 512>>(cols, body);
}

// Computes the gradients for rows that do not fit in registers.
template <class T>
void wide_norm_backward(const NormBackwardArguments& a, int heads, bool centered,
                        const Stream& stream);

}  // namespace fusewire::cuda
