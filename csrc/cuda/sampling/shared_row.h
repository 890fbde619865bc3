// A row of logits that the blocks of a cluster share. One block has few loads in flight, so that a
// single row of 100,000 elements takes as long as one for each multiprocessor.
#pragma once

#include "cuda/cluster.h"
#include "cuda/element.h"
#include "cuda/sampling/draw.h"

namespace fusewire::cuda {

constexpr int kMostBlocks = 8;  // of a cluster, on every GPU that has clusters

// Returns how many blocks share a row, a power of two: as many as have two vectors per thread to
// read, while those of all rows are no more than `at_once`.
template <class T>
int blocks_per_row(int64_t rows, int64_t cols, int64_t at_once) {
  constexpr int64_t kLeast = 2 * kDrawThreads * Vector<T>::kSize;  // columns of a block
  int blocks = 1;
  while (has_clusters() && 2 * blocks <= kMostBlocks && 2 * blocks * rows <= at_once &&
         2 * blocks * kLeast <= cols) {
    blocks *= 2;
  }
  return blocks;
}

// The range of a row's finite elements, and whether the logits define a distribution.
struct Range {
  float most, least;
  int first;   // the first column of the largest element
  bool sound;  // neither NaN nor +infinity, and not -infinity throughout
};

// Block `rank` of the `blocks` that share the row calls it; only block 0 has to get the result.
// Columns are exact as floats (ops/sampling.cc).
template <class T>
__device__ __forceinline__ Range range_of(const T* row, int cols, int rank, int blocks) {
  constexpr int kMost = 0, kLeast = 1, kNan = 2, kFirst = 3;
  __shared__ float of_block[4];
  float ends[3] = {-INFINITY, -INFINITY, 0.0f};  // largest, -smallest, 1 for NaN
  int column_of_largest = 0;
  const auto see = [&](float value, int column) {
    if (value > ends[kMost]) {
      ends[kMost] = value;
      column_of_largest = column;
    }
    if (value > -INFINITY) ends[kLeast] = fmaxf(ends[kLeast], -value);
    if (isnan(value)) ends[kNan] = 1.0f;
  };
  for_elements<4>(row, cols, see, rank, blocks);
  const float own = ends[kMost];
  reduce_block(ends, Max{});
  // The negated column, of which the largest is that of the first.
  const auto column_if = [](bool found, float column) { return found ? column : -INFINITY; };
  float first =
      reduce_block(column_if(own == ends[kMost], -static_cast<float>(column_of_largest)), Max{});
  if (blocks > 1) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < 3; ++i) of_block[i] = ends[i];
      of_block[kFirst] = first;
    }
    wait_for_cluster();
    if (rank == 0) {
      const int other = threadIdx.x % blocks;
      float its[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        its[i] = load_of_block(of_block + i, other);
        ends[i] = reduce_lanes<kMostBlocks>(its[i], Max{});
      }
      const float its_first = load_of_block(of_block + kFirst, other);
      first = reduce_lanes<kMostBlocks>(column_if(its[kMost] == ends[kMost], its_first), Max{});
    }
    wait_for_cluster();  // no block exits before its numbers are read
  }
  return {ends[kMost], -ends[kLeast], static_cast<int>(-first),
          ends[kNan] == 0.0f && !isinf(ends[kMost])};
}

}  // namespace fusewire::cuda
