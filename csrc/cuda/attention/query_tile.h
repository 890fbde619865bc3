// The tile of queries that a block of packed attention works on.
//
// The grid has query_tiles(rows) tiles of a batch. Tiles of one sequence are adjacent, and no tile
// spans two sequences. Only the device knows the lengths (a CUDA graph is replayed for many
// batches), so each block counts tiles until it reaches its own.
#pragma once

#include <cstdint>

namespace fusewire::cuda {

struct QueryTile {
  int token;        // the row of the sequence's first token in the packed matrix
  int length;       // tokens of the sequence
  int first_query;  // counted from the sequence's first token; >= length: nothing to do
};

// Returns tile number `tile` of the batch, in tiles of `kRows` queries. All 32 lanes of a warp call
// it and receive the same result, which is empty (length 0) for a number beyond the last tile. Each
// warp of a block may call it on its own, which costs less than a barrier.
//
// Each lane counts the tiles of kEach consecutive sequences, and a scan by shuffles adds up the
// lanes, so one round of loads covers 256 sequences. Offsets are uploaded before the first kernel
// of a chain, so this may be called before wait_for_inputs().
template <int kRows>
__device__ __forceinline__ QueryTile find_query_tile(const int32_t* offsets, int sequences,
                                                     int tile) {
  constexpr int kEach = 8;
  constexpr unsigned kWarp = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < sequences; begin += 32 * kEach) {
    const int first = begin + lane * kEach;
    int offset[kEach + 1];
#pragma unroll
    for (int i = 0; i <= kEach; ++i) {
      offset[i] = offsets[first + i < sequences ? first + i : sequences];
    }
    int mine = 0;  // tiles of this lane's sequences
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += (offset[i + 1] - offset[i] + kRows - 1) / kRows;
    int through = mine;  // tiles of all lanes up to and including this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kWarp, through, distance);
      if (lane >= distance) through += other;
    }
    const int all = __shfl_sync(kWarp, through, 31);
    if (tile >= all) {
      tile -= all;
      continue;
    }
    QueryTile found = {0, 0, 0};
    int rest = tile - (through - mine);  // negative: in an earlier lane; >= mine: in a later one
    const bool here = rest >= 0 && rest < mine;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int length = offset[i + 1] - offset[i];
      const int tiles = (length + kRows - 1) / kRows;
      if (rest >= 0 && rest < tiles) found = {offset[i], length, rest * kRows};
      rest -= tiles;
    }
    const int owner = __ffs(__ballot_sync(kWarp, here)) - 1;
    found.token = __shfl_sync(kWarp, found.token, owner);
    found.length = __shfl_sync(kWarp, found.length, owner);
    found.first_query = __shfl_sync(kWarp, found.first_query, owner);
    return found;
  }
  return {0, 0, 0};
}

// Returns the same where no sequence is longer than one tile, so that tile numbers are sequence
// numbers.
__device__ __forceinline__ QueryTile whole_sequence(const int32_t* offsets, int sequence) {
  const int token = offsets[sequence];
  return {token, offsets[sequence + 1] - token, 0};
}

// Returns the sequence of a packed row: the last one that begins at or before it. Where several
// begin at the same row, all but the last of them are empty.
__device__ __forceinline__ int sequence_of(const int32_t* offsets, int sequences, int row) {
  int low = 0, high = sequences - 1;
#pragma unroll 1
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The keys of the sequence of a tile; without key_offsets they are the rows of its queries.
struct KeyRows {
  int token, length;
};
__device__ __forceinline__ KeyRows keys_of(const QueryTile& tile, const int32_t* offsets,
                                           const int32_t* key_offsets, int sequences) {
  if (!key_offsets) return {tile.token, tile.length};
  const int sequence = sequence_of(offsets, sequences, tile.token);
  return {key_offsets[sequence], key_offsets[sequence + 1] - key_offsets[sequence]};
}

}  // namespace fusewire::cuda
