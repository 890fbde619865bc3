// What the kernels of attention in training share for short sequences: a block holds the queries
// and keys of a head of one sequence in shared memory.
#pragma once

#include "cuda/attention/shared_rows.h"
#include "cuda/attention/tiled_work.h"

namespace fusewire::cuda {

constexpr int kWarpRows = 16;  // of a product

template <class Rows>
__host__ __device__ constexpr int padded(int rows) {
  return (rows + Rows::kOther - 1) / Rows::kOther * Rows::kOther;
}

// Rows that a block has room for: those of the longest sequence of the batch, padded.
struct ShortRoom {
  int queries, keys;
};
template <class Rows>
ShortRoom room_of(const AttentionArguments& a) {
  return {padded<Rows>(static_cast<int>(a.queries->max_seqlen())),
          padded<Rows>(static_cast<int>(a.keys->max_seqlen()))};
}

// The sequence of a block. Offsets may be read before wait_for_inputs(), as in query_tile.h.
__device__ __forceinline__ AttendedSequence whole_sequence(const AttentionShape& shape,
                                                           int sequence) {
  const QueryTile queries = whole_sequence(shape.offsets, sequence);
  if (!shape.key_offsets) return {queries.token, queries.length, queries.token, queries.length};
  const QueryTile keys = whole_sequence(shape.key_offsets, sequence);
  return {queries.token, queries.length, keys.token, keys.length};
}

// Draws the dropout mask of a sequence: `groups` bytes per query, one for each 8 keys.
template <int kThreads>
__device__ __forceinline__ void draw_short_mask(uint8_t* mask, const WeightDropout& dropout,
                                                int heads, int head, const AttendedSequence& of,
                                                int groups) {
  for (int i = threadIdx.x; i < of.queries * groups; i += kThreads) {
    const int query = i / groups;
    mask[i] = kept_of_group(dropout, (of.token + query) * heads + head, i - query * groups);
  }
}

}  // namespace fusewire::cuda
