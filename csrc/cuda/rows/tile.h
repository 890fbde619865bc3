// Grids for work that treats every element of a matrix alike.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace fusewire::cuda {

// 256 threads: along x the accesses of a row, kUnroll each; along y rows, as many as fit.
struct Tiles {
  dim3 grid, block;
};

template <int kUnroll>
Tiles tiles_of(int64_t rows, int64_t accesses) {
  constexpr int kThreads = 256;
  constexpr int64_t kMostRowBlocks = 65535;  // of grid.y; a block takes further rows in turn
  int x = 32;
  while (x < kThreads && x * kUnroll < accesses) x *= 2;
  const int y = kThreads / x;
  const int64_t across = (accesses + x * kUnroll - 1) / (x * kUnroll);
  return {dim3(static_cast<unsigned>(across),
               static_cast<unsigned>(std::min((rows + y - 1) / y, kMostRowBlocks))),
          dim3(x, y)};
}

__device__ __forceinline__ int64_t tile_row() {
  return static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}
__device__ __forceinline__ int64_t tile_row_step() {
  return static_cast<int64_t>(gridDim.y) * blockDim.y;
}
// The i-th access of this thread in its row.
template <int kUnroll>
__device__ __forceinline__ int64_t tile_access(int i) {
  return (static_cast<int64_t>(blockIdx.x) * kUnroll + i) * blockDim.x + threadIdx.x;
}

}  // namespace fusewire::cuda
