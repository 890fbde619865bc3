// Sums and maxima over the threads that share a row: one warp, or a whole block.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace fusewire::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Sum {
  static constexpr float kIdentity = 0.0f;
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// NaN loses here: who wants it in the result gets it from the elements themselves.
struct Max {
  static constexpr float kIdentity = -INFINITY;
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Every thread of the warp receives the result, which is the same in each: a butterfly adds the
// same pairs in every lane.
template <class Operation>
__device__ __forceinline__ float reduce_warp(float x, Operation operation) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = operation(x, __shfl_xor_sync(kWholeWarp, x, distance));
  }
  return x;
}

// Over kThreads threads, a warp or the block. Several values travel together, for one barrier.
// kSlot: of two reductions in a row (round a loop, too) one has slot 0 and the next slot 1, since
// warps that are behind may still read the partial results of the one before.
template <int kThreads, int kSlot, class Operation, int kValues>
__device__ __forceinline__ void reduce(float (&x)[kValues], Operation operation) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] = reduce_warp(x[i], operation);
  if constexpr (kThreads > kWarp) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ float partial[kValues][kWarps];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) partial[i][warp] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      x[i] = reduce_warp(lane < kWarps ? partial[i][lane] : Operation::kIdentity, operation);
    }
  }
}

template <int kThreads, int kSlot, class Operation>
__device__ __forceinline__ float reduce(float x, Operation operation) {
  float values[1] = {x};
  reduce<kThreads, kSlot>(values, operation);
  return values[0];
}

}  // namespace fusewire::cuda
