// How the blocks of Hopper's attention are cut, a team's shared memory, and the warp that fills it:
// it feeds queries, keys and values by TMA to the warpgroups that attend, through rings of stages
// (sm90_barrier.h), and runs ahead of them into the team's next item.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "cuda/attention/sm90_attention_items.h"
#include "cuda/sm90_barrier.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// How a kernel is cut: teams of warpgroups of 64 queries each, keys of a tile, stages of the rings.
// Each team of a block works on items of its own.
template <int head_dim, int warpgroups, int keys, int stages, int query_stages, int teams = 1>
struct AttentionTile {
  static constexpr int kHeadDim = head_dim, kWarpgroups = warpgroups, kKeys = keys;
  static constexpr int kStages = stages, kQueryStages = query_stages, kTeams = teams;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kAttending = kTeams * kWarpgroups;  // warpgroups of the block
  static constexpr int kThreads = 128 * (kAttending + 1);
  // Keys of the narrow kernel for a last tile that has no more.
  static constexpr int kFewKeys = (kKeys / 2 + 15) / 16 * 16;
  // Registers of a thread. A multiprocessor's are shared out at launch, then moved from the
  // feeding warpgroup to the others.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kRegisters =
      std::min(232, (kLaunchRegisters * (kAttending + 1) - 24) / kAttending / 8 * 8);
  static constexpr int kFeedRegisters =
      std::min(232, kLaunchRegisters*(kAttending + 1) - kRegisters * kAttending);
};

// Everything of a team. Matrices are [head_dim / 64][rows][64] with TMA's swizzle; the queries
// have such a one for each warpgroup.
template <class T, class Tile>
struct alignas(1024) AttentionMemory {
  T query[Tile::kQueryStages][Tile::kRows * Tile::kHeadDim];
  T key[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  T value[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  // A warpgroup begins as soon as its own queries are there.
  uint64_t query_full[Tile::kQueryStages][Tile::kWarpgroups], query_empty[Tile::kQueryStages];
  uint64_t key_full[Tile::kStages], key_empty[Tile::kStages];
  uint64_t value_full[Tile::kStages], value_empty[Tile::kStages];
  AttentionItem item[Tile::kQueryStages];  // of the queries

  __device__ __forceinline__ void init() {
    const auto ring = [](uint64_t* full, uint64_t* empty, int stages, int fulls) {
      for (int i = 0; i < stages * fulls; ++i) barrier_init(full + i, 1);
      // One arrival for each reading warp.
      for (int i = 0; i < stages; ++i) barrier_init(empty + i, 4 * Tile::kWarpgroups);
    };
    ring(query_full[0], query_empty, Tile::kQueryStages, Tile::kWarpgroups);
    ring(key_full, key_empty, Tile::kStages, 1);
    ring(value_full, value_empty, Tile::kStages, 1);
    barrier_init_fence();
  }
};

template <class T, class Tile>
struct AttentionBlock {
  AttentionMemory<T, Tile> team[Tile::kTeams];
  TileOrder order;
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

// The feeding warp. All lanes find the items, one issues the copies. `group` heads of the queries
// read one of the keys; values are in the matrix of the keys, from value_column on.
template <class T, class Tile>
__device__ __forceinline__ void feed(AttentionMemory<T, Tile>& memory, const CUtensorMap* queries,
                                     const CUtensorMap* keys, AttentionItems<Tile::kRows> items,
                                     int group, int value_column) {
  constexpr int kHeadDim = Tile::kHeadDim, kGroupSize = 64 * kHeadDim;
  const auto load = [&](T* to, const CUtensorMap* map, int rows, int row, int column,
                        uint64_t* full) {
    barrier_expect(full, rows * kHeadDim * sizeof(T));
#pragma unroll
    for (int i = 0; i < kHeadDim / 64; ++i) {
      tma_load(to + i * rows * 64, map, row, column + i * 64, full);
    }
  };
  Ring<Tile::kQueryStages> query;
  Ring<Tile::kStages> ring;
  for (;; query.advance()) {
    const AttentionItem item = items.next();
    if (threadIdx.x % 32 == 0) {
      const int token = item.tile.token, length = item.tile.length, first = item.tile.first_query;
      const int column = item.head * kHeadDim;
      const int key_column = item.head / group * kHeadDim;
      barrier_wait(&memory.query_empty[query.stage], query.parity ^ 1);
      memory.item[query.stage] = item;
#pragma unroll
      for (int group = 0; group < Tile::kWarpgroups; ++group) {
        uint64_t* full = &memory.query_full[query.stage][group];
        if (first + group * 64 < length) {
          load(memory.query[query.stage] + group * kGroupSize, queries, 64,
               token + first + group * 64, column, full);
        } else {
          barrier_arrive(full);
        }
      }
      for (int key = 0; key < length; key += Tile::kKeys, ring.advance()) {
        barrier_wait(&memory.key_empty[ring.stage], ring.parity ^ 1);
        load(memory.key[ring.stage], keys, Tile::kKeys, token + key, key_column,
             &memory.key_full[ring.stage]);
        barrier_wait(&memory.value_empty[ring.stage], ring.parity ^ 1);
        load(memory.value[ring.stage], keys, Tile::kKeys, token + key, value_column + key_column,
             &memory.value_full[ring.stage]);
      }
    }
    if (item.tile.length == 0) return;
  }
}

}  // namespace fusewire::cuda::sm90
