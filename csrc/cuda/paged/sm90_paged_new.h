// The new tokens of a step in paged attention on Hopper (sm90_paged.h). The warp that attends to a
// new token applies RoPE to its key, and writes key and value to the cache and into its own tile.
#pragma once

#include "cuda/attention/rotate.h"
#include "cuda/paged/paged_walk.h"
#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

// The new tokens of a step. keys == null: the cache holds them already. cos == null: RoPE has been
// applied already, or is not used; otherwise it applies to whole heads.
template <class Stored>
struct PagedNew {
  Stored *keys, *values;     // the cache
  const int32_t* positions;  // [tokens], rows of the tables
  const float *cos, *sin;    // [angles, head_dim / 2]
  int64_t angles;

  // Returns the row of the tables for a packed token, or -1 if they have none. The positions are
  // uploaded before the first kernel of a chain.
  __device__ __forceinline__ int64_t angle_row(int token) const {
    const int64_t position = positions[token];
    return position >= 0 && position < angles ? position : -1;
  }
};

// Rotates two adjacent elements and the two that they are paired with, in place.
template <class T>
__device__ __forceinline__ void rotate_pairs(uint32_t& first, uint32_t& second,
                                             const float2& cosine, const float2& sine) {
  const float2 x = unpack<T>(first), y = unpack<T>(second);
  const float2 low = rotated(x.x, y.x, cosine.x, sine.x);
  const float2 high = rotated(x.y, y.y, cosine.y, sine.y);
  first = pack<T>(low.x, high.x);
  second = pack<T>(low.y, high.y);
}

// Loads cos and sin of two adjacent columns from row `row` of the tables, from column `column` on;
// NaN if row < 0.
template <class Stored>
__device__ __forceinline__ void angles_of(const PagedNew<Stored>& added, int64_t row, int half,
                                          int column, float2& cosine, float2& sine) {
  cosine = sine = {NAN, NAN};
  if (row < 0) return;
  cosine = *reinterpret_cast<const float2*>(added.cos + row * half + column);
  sine = *reinterpret_cast<const float2*>(added.sin + row * half + column);
}

// The key and the value of one new token, in the registers of a warp.
template <class Tile>
struct PagedNewToken {
  using T = typename Tile::T;
  using Stored = typename Tile::Stored;
  static constexpr int kHalf = Tile::kDim / 2, kPairs = (kHalf + 63) / 64;  // pairs per lane

  const PagedWork<Tile>& work;
  const PagedNew<Stored>& added;
  int token = -1;  // its index among the sequence's new tokens; -1: the warp has none
  uint32_t key[kPairs][2], value[kPairs][2];
  float2 cosine[kPairs], sine[kPairs];

  __device__ __forceinline__ PagedNewToken(const PagedWork<Tile>& work,
                                           const PagedNew<Stored>& added, int first_tile)
      : work(work), added(added) {
    if (!added.keys) return;
    // New tokens are in at most two tiles.
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

  // Selects the new token that the registers hold from here on, by its index in the sequence's new
  // tokens.
  __device__ __forceinline__ void choose(int index) {
    token = index;
    if (!added.cos) return;
    const int64_t row = added.angle_row(work.item.token + token);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (column(i) < kHalf) angles_of(added, row, kHalf, column(i), cosine[i], sine[i]);
    }
  }

  // Loads key and value from rows of q | k | v. Called after wait_for_inputs().
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

  // Writes key and value to the cache, and to the tile, which was fetched from the cache without
  // them.
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

  // Writes all new tokens of a tile.
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
