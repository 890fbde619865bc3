// How the blocks of Hopper's attention are cut, their shared memory, and the warp that fills it: it
// feeds queries, keys and values by TMA to the warpgroups that attend, through rings of stages
// (sm90_barrier.h), and runs ahead of them into the block's next item.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "cuda/sm90_attention_items.h"
#include "cuda/sm90_barrier.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// How a kernel is cut: warpgroups of 64 queries, keys of a tile, stages of the rings.
template <int head_dim, int warpgroups, int keys, int stages, int query_stages>
struct AttentionTile {
  static constexpr int kHeadDim = head_dim, kWarpgroups = warpgroups, kKeys = keys;
  static constexpr int kStages = stages, kQueryStages = query_stages;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  // Keys of the narrow kernel for a last tile that has no more.
  static constexpr int kFewKeys = (kKeys / 2 + 15) / 16 * 16;
  // Registers of a thread. A multiprocessor's are shared out at launch, then moved from the
  // feeding warpgroup to the others.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kRegisters =
      std::min(232, (kLaunchRegisters * (kWarpgroups + 1) - 24) / kWarpgroups / 8 * 8);
  static constexpr int kFeedRegisters =
      std::min(232, kLaunchRegisters*(kWarpgroups + 1) - kRegisters * kWarpgroups);
};

// Everything of the block. Matrices are [head_dim / 64][rows][64] with TMA's swizzle; the queries
// have such a one for each warpgroup.
template <class T, class Tile>
struct AttentionMemory {
  T query[Tile::kQueryStages][Tile::kRows * Tile::kHeadDim];
  T key[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  T value[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  uint64_t query_full[Tile::kQueryStages], query_empty[Tile::kQueryStages];
  uint64_t key_full[Tile::kStages], key_empty[Tile::kStages];
  uint64_t value_full[Tile::kStages], value_empty[Tile::kStages];
  AttentionItem item[Tile::kQueryStages];  // of the queries
  SequenceOrder order;

  __device__ __forceinline__ void init() {
    for (int i = 0; i < Tile::kQueryStages; ++i) init(&query_full[i], &query_empty[i]);
    for (int i = 0; i < Tile::kStages; ++i) init(&key_full[i], &key_empty[i]);
    for (int i = 0; i < Tile::kStages; ++i) init(&value_full[i], &value_empty[i]);
    barrier_init_fence();
  }
  __device__ __forceinline__ static void init(uint64_t* full, uint64_t* empty) {
    barrier_init(full, 1);
    barrier_init(empty, 4 * Tile::kWarpgroups);  // one for each reading warp
  }
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// This warp has read what the barrier guards.
__device__ __forceinline__ void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// The feeding warp. All lanes find the items, one issues the copies.
template <class T, class Tile>
__device__ __forceinline__ void feed(AttentionMemory<T, Tile>& memory, const CUtensorMap* queries,
                                     const CUtensorMap* keys, AttentionItems<Tile::kRows> items,
                                     int heads) {
  constexpr int kHeadDim = Tile::kHeadDim, kHalves = kHeadDim / 64;
  const auto load = [&](T* to, int row, int column, uint64_t* full) {  // a tile of keys or values
    barrier_expect(full, Tile::kKeys * kHeadDim * sizeof(T));
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      tma_load(to + i * Tile::kKeys * 64, keys, row, column + i * 64, full);
    }
  };
  Ring<Tile::kQueryStages> query;
  Ring<Tile::kStages> ring;
  for (;; query.advance()) {
    const AttentionItem item = items.next();
    if (threadIdx.x % 32 == 0) {
      const auto [token, length, first] = item.tile;
      const int column = item.head * kHeadDim;
      uint64_t* full = &memory.query_full[query.stage];
      barrier_wait(&memory.query_empty[query.stage], query.parity ^ 1);
      memory.item[query.stage] = item;
      const int groups = (min(length - first, Tile::kRows) + 63) / 64;
      barrier_expect(full, groups * 64 * kHeadDim * sizeof(T));
      for (int i = 0; i < groups * kHalves; ++i) {
        tma_load(memory.query[query.stage] + i * 64 * 64, queries, token + first + i / kHalves * 64,
                 column + i % kHalves * 64, full);
      }
      for (int key = 0; key < length; key += Tile::kKeys, ring.advance()) {
        barrier_wait(&memory.key_empty[ring.stage], ring.parity ^ 1);
        load(memory.key[ring.stage], token + key, heads * kHeadDim + column,
             &memory.key_full[ring.stage]);
        barrier_wait(&memory.value_empty[ring.stage], ring.parity ^ 1);
        load(memory.value[ring.stage], token + key, 2 * heads * kHeadDim + column,
             &memory.value_full[ring.stage]);
      }
    }
    if (item.tile.length == 0) return;
  }
}

}  // namespace fusewire::cuda::sm90
