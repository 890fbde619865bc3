// Sums and maxima over the threads that share a row: those of a warp, or of a whole block.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace fusewire::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// fmaxf ignores NaN. Callers whose result must be NaN detect it in the elements themselves.
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Reduces x over kLanes consecutive lanes, a power of two. Every lane receives the same bits,
// because a butterfly reduction adds the same pairs in every lane.
template <int kLanes, class Operation>
__device__ __forceinline__ float reduce_lanes(float x, Operation operation) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = operation(x, __shfl_xor_sync(kWholeWarp, x, distance));
  }
  return x;
}

// Reduces each x[i] over kThreads threads, which are a warp or the whole block. Several values are
// reduced together to share one barrier. Consecutive reductions, also those of consecutive loop
// iterations, alternate between kSlot 0 and 1, because slower warps may still be reading the
// partial results of the previous one.
template <int kThreads, int kSlot, class Operation, int kValues>
__device__ __forceinline__ void reduce(float (&x)[kValues], Operation operation) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] = reduce_lanes<kWarp>(x[i], operation);
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
      x[i] = reduce_lanes<kWarps>(partial[i][lane % kWarps], operation);
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
