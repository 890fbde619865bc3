// The gradient of a bias by distance in the backward pass of attention: sums of the gradients of
// scores over all pairs of a distance.
//
// A block adds up those of its own tile of queries, in the order of the tiles of keys that it
// walks, and column_totals.h those of the blocks in theirs: no sum of which two threads share the
// terms.
#pragma once

#include "cuda/reduce.h"

namespace fusewire::cuda {

// What a block has of a tile of queries and a tile of keys, in shared memory.
template <int kTile>
struct BiasTile {
  float gradients[kTile][kTile + 1];  // of scores after their bias [query][key]
  float diagonals[2 * kTile];         // their sums, by key - query + kTile - 1
};

// The block's sums of a head, `width` of them, become 0. They are nobody else's.
template <int kThreads>
__device__ __forceinline__ void clear_bias_sums(float* sums, int width) {
  for (int c = threadIdx.x; c < width; c += kThreads) sums[c] = 0.0f;
}

// Adds a tile to the block's sums, whose middle is distance 0 and whose ends, `most` from it, take
// distances beyond. `distance`: of the tile's first key to its first query. All threads call it,
// with a barrier before, and one after before the tile is written anew.
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
  // The first diagonal of a column adds those behind it that the end of the table takes too.
  const int first = threadIdx.x;
  if (first >= kDiagonals || (first > 0 && column_of(first - 1) == column_of(first))) return;
  const int column = column_of(first);
  float total = sums[column];
  for (int u = first; u < kDiagonals && column_of(u) == column; ++u) total += tile.diagonals[u];
  sums[column] = total;
}

}  // namespace fusewire::cuda
