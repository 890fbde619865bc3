// The gradient of a bias by distance in the backward pass of attention: for each distance, the sum
// of the gradients of the scores of all pairs at that distance.
//
// A block sums the gradients of its own tile of queries, in the order in which it visits the tiles
// of keys, and column_totals.h sums those of the blocks in the order of the blocks. No two threads
// add to the same sum, so the result has the same bits every time.
#pragma once

#include "cuda/reduce.h"

namespace fusewire::cuda {

// What a block holds in shared memory for one tile of queries and one tile of keys.
template <int kTile>
struct BiasTile {
  float gradients[kTile][kTile + 1];  // of scores with respect to the bias [query][key]
  float diagonals[2 * kTile];         // their sums, by key - query + kTile - 1
};

// Sets the block's `width` sums of a head to 0. No other block accesses them.
template <int kThreads>
__device__ __forceinline__ void clear_bias_sums(float* sums, int width) {
  for (int c = threadIdx.x; c < width; c += kThreads) sums[c] = 0.0f;
}

// Adds a tile to the block's sums, which has the sum of distance 0 in the middle; its ends, `most`
// away from it, also take the distances beyond. `distance` is that of the tile's first key to its
// first query. All threads call it. The caller synchronises them before the call, and again before
// it overwrites the tile.
template <int kTile, int kThreads>
__device__ void add_bias_tile(float* sums, BiasTile<kTile>& tile, int distance, int most) {
  constexpr int kDiagonals = 2 * kTile - 1, kLanes = kThreads / (2 * kTile);
  static_assert(kThreads % (2 * kTile) == 0 && kWarp % kLanes == 0);
  const int diagonal = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float sum = 0.0f;
  const int end = min(kTile, kDiagonals - diagonal);
  for (int i = max(kTile - 1 - diagonal, 0) + lane; i < end; i += kLanes) {
    sum += tile.gradients[i][i + diagonal - (kTile - 1)];
  }
  sum = reduce_lanes<kLanes>(sum, Sum());
  if (lane == 0) tile.diagonals[diagonal] = sum;
  __syncthreads();
  const auto column_of = [&](int u) {
    return most + max(min(distance + u - (kTile - 1), most), -most);
  };
  // The thread of the first diagonal of a column also adds the following diagonals that an end of
  // the table takes.
  const int first = threadIdx.x;
  if (first >= kDiagonals || (first > 0 && column_of(first - 1) == column_of(first))) return;
  const int column = column_of(first);
  float total = sums[column];
  for (int u = first; u < kDiagonals && column_of(u) == column; ++u) total += tile.diagonals[u];
  sums[column] = total;
}

}  // namespace fusewire::cuda
