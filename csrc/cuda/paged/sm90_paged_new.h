// What a step adds, on its way through Hopper's attention (sm90_paged.h): keys are rotated and
// written to the cache with their values, by the warp that attends to them, which finds them in its
// tile as if they had been there.
#pragma once

#include "cuda/attention/rotate.h"
#include "cuda/paged/paged_walk.h"
#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

// keys null: the cache holds the new tokens already. cos null: nothing is rotated, or all is
// already; else all of a head is.
template <class Stored>
struct PagedNew {
  Stored *keys, *values;     // of the cache
  const int32_t* positions;  // of the packed tokens, in the tables
  const float *cos, *sin;    // [angles, head_dim / 2]
  int64_t angles;

  // The row of the tables for a packed token, -1 where they have none. The positions are uploaded
  // before the first kernel of a chain.
  __device__ __forceinline__ int64_t angle_row(int token) const {
    const int64_t position = positions[token];
    return position >= 0 && position < angles ? position : -1;
  }
};

// Two neighbouring elements and the two that they are rotated with, in place.
template <class T>
__device__ __forceinline__ void rotate_pairs(uint32_t& first, uint32_t& second,
                                             const float2& cosine, const float2& sine) {
  const float2 x = unpack<T>(first), y = unpack<T>(second);
  const float2 low = rotated(x.x, y.x, cosine.x, sine.x);
  const float2 high = rotated(x.y, y.y, cosine.y, sine.y);
  first = pack<T>(low.x, high.x);
  second = pack<T>(low.y, high.y);
}

// cos and sin of two neighbouring elements: `row` of the tables, from column `column` on.
template <class Stored>
__device__ __forceinline__ void angles_of(const PagedNew<Stored>& added, int64_t row, int half,
                                          int column, float2& cosine, float2& sine) {
  cosine = sine = {NAN, NAN};
  if (row < 0) return;
  cosine = *reinterpret_cast<const float2*>(added.cos + row * half + column);
  sine = *reinterpret_cast<const float2*>(added.sin + row * half + column);
}

// The key and the value of one new token in the registers of a warp.
template <class Tile>
struct PagedNewToken {
  using T = typename Tile::T;
  using Stored = typename Tile::Stored;
  static constexpr int kHalf = Tile::kDim / 2, kPairs = (kHalf + 63) / 64;  // of a lane

  const PagedWork<Tile>& work;
  const PagedNew<Stored>& added;
  int token = -1;  // among those that the step adds to the sequence; -1: none is this warp's
  uint32_t key[kPairs][2], value[kPairs][2];
  float2 cosine[kPairs], sine[kPairs];

  __device__ __forceinline__ PagedNewToken(const PagedWork<Tile>& work,
                                           const PagedNew<Stored>& added, int first_tile)
      : work(work), added(added) {
    if (!added.keys) return;
    // New tokens lie in two tiles at most.
    for (int tile = work.old / Tile::kKeys; tile * Tile::kKeys < work.end; ++tile) {
      const bool mine =
          tile >= first_tile && tile < work.last_tile && (tile - first_tile) % Tile::kTeams == 0;
      if (!mine) continue;
      choose(max(tile * Tile::kKeys - work.old, 0));
      return;
    }
  }

  __device__ __forceinline__ static int column(int pair) {
    return 2 * (threadIdx.x % 32 + 32 * pair);
  }

  // The token, counted in its sequence's new ones, that the registers are for from here on.
  __device__ __forceinline__ void choose(int index) {
    token = index;
    if (!added.cos) return;
    const int64_t row = added.angle_row(work.item.token + token);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (column(i) < kHalf) angles_of(added, row, kHalf, column(i), cosine[i], sine[i]);
    }
  }

  // After wait_for_inputs(), of rows of q | k | v.
  __device__ __forceinline__ void load(const T* q) {
    if (token < 0) return;
    const PagedShape& shape = work.shape;
    const T* from = q + (work.item.token + token) * shape.q_stride +
                    (shape.heads + work.item.head) * Tile::kDim;
    const int to_value = shape.kv_heads * Tile::kDim;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (column(i) >= kHalf) continue;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const T* at = from + column(i) + side * kHalf;
        key[i][side] = *reinterpret_cast<const uint32_t*>(at);
        value[i][side] = *reinterpret_cast<const uint32_t*>(at + to_value);
      }
    }
  }

  // To the cache, and to the tile that was fetched from there without it.
  __device__ __forceinline__ void put(char* keys, char* values, int first_key) {
    using Pair = Pack<Stored, 2>;
    const int position = work.old + token, in_tile = position - first_key;
    const int64_t row = work.template cache_row<int64_t>(work.table(), position);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (column(i) >= kHalf) continue;
      if (added.cos) rotate_pairs<T>(key[i][0], key[i][1], cosine[i], sine[i]);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int c = column(i) + side * kHalf;
        const int byte = c * int{sizeof(Stored)}, at = Tile::at(in_tile, byte / 16) + byte % 16;
        const Pair k =
            stored<Stored>(reinterpret_cast<const Pack<T, 2>&>(key[i][side]), work.shape.k_scale);
        const Pair v =
            stored<Stored>(reinterpret_cast<const Pack<T, 2>&>(value[i][side]), work.shape.v_scale);
        *reinterpret_cast<Pair*>(keys + at) = k;
        *reinterpret_cast<Pair*>(values + at) = v;
        *reinterpret_cast<Pair*>(added.keys + row * Tile::kDim + c) = k;
        *reinterpret_cast<Pair*>(added.values + row * Tile::kDim + c) = v;
      }
    }
  }

  // All new tokens of a tile.
  __device__ __forceinline__ void put_all(const T* q, char* keys, char* values, int first_key) {
    const int begin = max(first_key - work.old, 0);
    const int end = min(first_key + Tile::kKeys - work.old, work.item.tokens);
    for (int index = begin; index < end; ++index) {
      if (index != token) {
        choose(index);
        load(q);
      }
      put(keys, values, first_key);
    }
    fence_async_shared();
    __syncwarp();
  }
};

}  // namespace fusewire::cuda::sm90
