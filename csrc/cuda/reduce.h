// Sums and maxima over the threads that share a row: one warp, or a whole block.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace fusewire::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// NaN loses here: who wants it in the result gets it from the elements themselves.
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over kLanes neighbouring lanes, a power of two. Each receives the result, which is the same in
// all: a butterfly adds the same pairs in every lane.
template <int kLanes, class Operation>
__device__ __forceinline__ float reduce_lanes(float x, Operation operation) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = operation(x, __shfl_xor_sync(kWholeWarp, x, distance));
  }
  return x;
}

// Over kThreads threads, a warp or the block. Several values travel together, for one barrier.
// kSlot: of two reductions in a row (round a loop, too) one has slot 0 and the next slot 1, since
// slower warps may still read the partial results of the one before.
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
