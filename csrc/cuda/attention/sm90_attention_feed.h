// The configuration of attention on Hopper, the shared memory of a team, and the producer warp that
// fills it: it loads queries, keys and values by TMA into pipelines of stages (sm90_barrier.h) for
// the warpgroups that consume them, and runs ahead of these into the team's next item.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "cuda/attention/sm90_attention_items.h"
#include "cuda/sm90_barrier.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// The configuration of a kernel: teams of warpgroups with 64 queries each, keys per tile, and the
// stages of the pipelines. Each team of a block works on items of its own.
template <int head_dim, int warpgroups, int keys, int stages, int query_stages, int teams = 1>
struct AttentionTile {
  static constexpr int kHeadDim = head_dim, kWarpgroups = warpgroups, kKeys = keys;
  static constexpr int kStages = stages, kQueryStages = query_stages, kTeams = teams;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kAttending = kTeams * kWarpgroups;  // consumer warpgroups of the block
  static constexpr int kThreads = 128 * (kAttending + 1);
  // The size of a last tile with few keys, which has separate code.
  static constexpr int kFewKeys = (kKeys / 2 + 15) / 16 * 16;
  // Registers per thread. The registers of a multiprocessor are divided evenly at launch, then
  // moved from the producer warpgroup to the consumers.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kRegisters =
      std::min(232, (kLaunchRegisters * (kAttending + 1) - 24) / kAttending / 8 * 8);
  static constexpr int kFeedRegisters =
      std::min(232, kLaunchRegisters*(kAttending + 1) - kRegisters * kAttending);
};

// The shared memory of a team. Matrices are [head_dim / 64][rows][64] with TMA's swizzle; the
// queries have one such matrix per warpgroup.
template <class T, class Tile>
struct alignas(1024) AttentionMemory {
  T query[Tile::kQueryStages][Tile::kRows * Tile::kHeadDim];
  T key[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  T value[Tile::kStages][Tile::kKeys * Tile::kHeadDim];
  // Each warpgroup has a barrier, so that it starts as soon as its own queries are loaded.
  uint64_t query_full[Tile::kQueryStages][Tile::kWarpgroups], query_empty[Tile::kQueryStages];
  uint64_t key_full[Tile::kStages], key_empty[Tile::kStages];
  uint64_t value_full[Tile::kStages], value_empty[Tile::kStages];
  AttentionItem item[Tile::kQueryStages];  // the item of each stage of queries

  __device__ __forceinline__ void init() {
    const auto ring = [](uint64_t* full, uint64_t* empty, int stages, int fulls) {
      for (int i = 0; i < stages * fulls; ++i) barrier_init(full + i, 1);
      // Each consumer warp arrives once.
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

// Tells the producer that this warp has read the stage that `empty` guards.
__device__ __forceinline__ void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// The producer warp. All lanes compute the items, one issues the copies. `group` heads of the
// queries share a head of the keys. The values are in the same rows as the keys, from value_column
// on.
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
