// The work of a block of attention in training: it owns rows, queries of a head or keys, and loops
// over tiles of the other side. Also steps that all kernels on tensor cores have in common.
#pragma once

#include "cuda/attention/attention_backward.h"
#include "cuda/attention/flash_tile.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// A tile of the other side: its first row in its sequence, and the head of the queries.
struct Passing {
  int first, head;
};

template <bool kOwnsKeys, int kOwn, int kOther>
struct TiledWork {
  AttendedSequence of;
  int own, own_rows, own_head, kv_head;
  int begin, end;         // the range of rows of the other side, in whole tiles
  int first_head, count;  // the first head of the queries; the number of tiles over all heads

  __device__ __forceinline__ static QueryTile find_tile(const AttentionShape& shape, int number) {
    return find_query_tile<kOwn>(kOwnsKeys && shape.key_offsets ? shape.key_offsets : shape.offsets,
                                 shape.sequences, number);
  }

  // The tile must not be empty.
  __device__ __forceinline__ TiledWork(const QueryTile& tile, const AttentionShape& shape, int head)
      : of(kOwnsKeys ? sequence_of_keys(tile, shape) : sequence_of_queries(tile, shape)),
        own(tile.first_query),
        own_rows(min(tile.length - own, kOwn)),
        own_head(head),
        kv_head(kOwnsKeys ? head : head / shape.group),
        first_head(kOwnsKeys ? head * shape.group : head) {
    const SeenRange range = kOwnsKeys ? queries_seeing<kOther>(of, shape, own, own + own_rows)
                                      : keys_seen<kOther>(of, shape, own, own + own_rows);
    const int tiles = max((range.end - range.begin + kOther - 1) / kOther, 0);
    begin = range.begin;
    end = begin + tiles * kOther;
    count = tiles * (kOwnsKeys ? shape.group : 1);
  }

  __device__ __forceinline__ Passing first_passing() const { return {begin, first_head}; }
  // Advances to the next tile.
  __device__ __forceinline__ void advance(Passing& p) const {
    p.first += kOther;
    if (kOwnsKeys && p.first >= end) {
      p.first = begin;
      ++p.head;
    }
  }
};

// Computes the sum of dout * out of each of the block's queries. Writes it to `dots`, for this
// block, and to `all_dots` (if not null), for the kernel of the keys; loads their log_sum_exp. Two
// threads process a row, so a warp has 16 rows.
template <class Tile>
__device__ __forceinline__ void sum_dots(float* log_sum_exp, float* dots,
                                         const AttentionBackwardShape<typename Tile::T>& g,
                                         int64_t token, int rows, int head, float* all_dots,
                                         bool vectors) {
  using T = typename Tile::T;
  static_assert(Tile::kThreads == 2 * Tile::kOwn);
  const AttentionShape& shape = g.forward;
  const int row = threadIdx.x / 2, width = row < rows ? shape.head_dim : 0;
  const T* dout = g.dout + (token + row) * g.dout_stride + head * shape.head_dim;
  const T* out = g.out + (token + row) * shape.out_stride + head * shape.head_dim;
  float dot = 0.0f;
#pragma unroll
  for (int chunk = threadIdx.x % 2; chunk < Tile::kChunks; chunk += 2) {
    const uint4 a = load_chunk(dout, chunk * 8, width, vectors);
    const uint4 b = load_chunk(out, chunk * 8, width, vectors);
    const uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<T>(left[i]), y = unpack<T>(right[i]);
      dot = fmaf(x.y, y.y, fmaf(x.x, y.x, dot));
    }
  }
  dot += __shfl_xor_sync(kWholeWarp, dot, 1);
  if (threadIdx.x % 2) return;
  dots[row] = dot;
  log_sum_exp[row] = INFINITY;  // makes weights of rows beyond the sequence 0
  if (row >= rows) return;
  if (all_dots) all_dots[token + row] = dot;
  log_sum_exp[row] = shape.log_sum_exp[head * shape.log_sum_exp_stride + token + row];
}

// Returns `dropout` with `added` read and added to the seed, so that a kernel reads it once.
__device__ __forceinline__ WeightDropout resolved(WeightDropout dropout) {
  if (dropout.any && dropout.added) dropout.seed += static_cast<uint64_t>(__ldg(dropout.added));
  dropout.added = nullptr;
  return dropout;
}

// Returns a byte with a bit set for each key of a group of 8 that is kept.
__device__ __forceinline__ uint8_t kept_of_group(const WeightDropout& dropout, uint32_t row,
                                                 uint32_t group) {
  const uint32_t least = dropout.threshold << 16;  // of a random number in a word's high half
  const PhiloxWords words = dropout.words(row, group);
  uint32_t kept = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (words.x[w] << 16 >= least) kept |= 1u << 2 * w;
    if (words.x[w] >= least) kept |= 2u << 2 * w;
  }
  return static_cast<uint8_t>(kept);
}

// Draws the dropout mask of kQueries queries, from packed token `token` on, and kGroups groups of
// keys: one byte per query and group. A thread draws kAtOnce bytes at a time, independent of one
// another, to overlap their latencies.
template <int kQueries, int kGroups, int kThreads, int kAtOnce = 1>
__device__ __forceinline__ void draw_mask(uint8_t* mask, const WeightDropout& dropout, int heads,
                                          int token, int head, int first_key) {
  static_assert(kQueries * kGroups % (kThreads * kAtOnce) == 0 && kThreads % kGroups == 0);
  const uint32_t group = threadIdx.x % kGroups + first_key / kDropoutGroup;
  uint32_t row = static_cast<uint32_t>((token + threadIdx.x / kGroups) * heads + head);
#pragma unroll 1
  for (int first = 0; first < kQueries * kGroups; first += kThreads * kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      mask[first + i * kThreads + threadIdx.x] = kept_of_group(dropout, row, group);
      row += kThreads / kGroups * heads;
    }
  }
}

}  // namespace fusewire::cuda
