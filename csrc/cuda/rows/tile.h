// Grids for elementwise kernels over a matrix.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace fusewire::cuda {

// Blocks have 256 threads: along x the accesses of a row, kUnroll per thread; along y as many rows
// as fit.
struct Tiles {
  dim3 grid, block;
};

template <int kUnroll>
Tiles tiles_of(int64_t rows, int64_t accesses) {
  constexpr int kThreads = 256;
  constexpr int64_t kMostRowBlocks = 65535;  // limit of grid.y; a block loops over further rows
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
// Returns the index of this thread's i-th access in its row.
template <int kUnroll>
__device__ __forceinline__ int64_t tile_access(int i) {
  return (static_cast<int64_t>(blockIdx.x) * kUnroll + i) * blockDim.x + threadIdx.x;
}

}  // namespace fusewire::cuda
