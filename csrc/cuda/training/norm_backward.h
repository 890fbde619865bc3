// How rows are shared out in the backward pass of a norm, and its sums over a row.
#pragma once

#include "core/training_kernels.h"
#include "cuda/rows/norm.h"

namespace fusewire::cuda {

// A block of one multiprocessor goes over rows with groups of L::kThreads threads, one row each,
// and keeps what they add to dweight and dbias in registers: two numbers a column, beside the row.
template <class L>
struct NormGroups {
  // Bounds the registers of a thread to 64, 128 and 168.
  static constexpr int kThreads = L::kElements <= 8 ? 1024 : L::kElements <= 16 ? 512 : 384;
  static constexpr int kCount = kThreads / L::kThreads;
  static constexpr int kBlock = kCount * L::kThreads;
  static constexpr int kColumns = L::kElements * L::kThreads;
  static constexpr size_t kSharedBytes = sizeof(float) * kCount * kColumns;  // at most 48 KiB
};

// Sums over the threads of a group. `slot` changes from each reduction to the next: slower warps
// may still read the partial results of the one before.
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
    // Barrier 0 is that of the block.
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(L::kThreads) : "memory");
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      x[i] = reduce_lanes<kWarps>(partial[slot][group][i][lane % kWarps], Sum{});
    }
    slot ^= 1;
  }
}

// Keeps the compiler from holding what it has read or widened so far in registers of its own: a row
// of 16-bit elements takes twice as many in fp32, and weights come again from L1.
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

// Calls body(RowLayout) for the smallest layout that holds rows of `cols` elements; false where
// none does. Of narrow rows (heads) a warp has several.
template <class T, class Body>
bool with_norm_layout(int64_t cols, bool vectors, Body&& body) {
  constexpr int n = Vector<T>::kSize, e = 8 / n;  // e: vectors that hold 8 elements
  const auto fits = [&](auto layout) {
    using L = decltype(layout);
    if (cols > L::kElements * L::kThreads) return false;
    body(layout);
    return true;
  };
  if (!vectors) {
    return fits(RowLayout<1, 8, 8>{}) || fits(RowLayout<1, 8, 32>{}) ||
           fits(RowLayout<1, 16, 64>{}) || fits(RowLayout<1, 16, 256>{});
  }
  return fits(RowLayout<n, e, 8>{}) || fits(RowLayout<n, e, 16>{}) || fits(RowLayout<n, e, 32>{}) ||
         fits(RowLayout<n, 2 * e, 32>{}) || fits(RowLayout<n, 3 * e, 32>{}) ||
         fits(RowLayout<n, 2 * e, 64>{}) || fits(RowLayout<n, 2 * e, 128>{}) ||
         fits(RowLayout<n, 2 * e, 256>{}) || fits(RowLayout<n, 2 * e, 512>{});
}

}  // namespace fusewire::cuda
