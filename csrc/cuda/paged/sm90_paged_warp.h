// What one warp of Hopper's paged attention (sm90_paged.h) does: fetches tiles of keys and values,
// and attends to them. The products are mma.sync's, turned over: keys are its 16 rows, and what
// there is least of, queries, its 8 columns.
#pragma once

#include "cuda/paged/paged_merge.h"
#include "cuda/paged/sm90_paged_new.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// kHalves: 1 where no sequence has more than 8 rows a kv head, else 2. Of kStages tiles a warp the
// keys and values are in flight. A multiprocessor should hold kBlocks blocks.
template <class Element, int dim, int halves, int stages, int blocks>
struct PagedTmaTile {
  using T = Element;
  static constexpr int kDim = dim, kHalves = halves, kStages = stages, kBlocks = blocks;
  static constexpr int kRows = 16, kKeys = 32, kTeams = 4, kThreads = 32 * kTeams;
  static constexpr int kUnit = 16;                       // keys of a fetch
  static constexpr int kLines = kDim / 64;               // of 128 bytes in a key
  static constexpr int kChunks = kDim / 8;               // of 16 bytes in a key
  static constexpr int kLineBytes = kKeys * 128;         // a line of all keys of a tile
  static constexpr int kKeyBytes = kLines * kLineBytes;  // keys of a tile; so many its values
  static constexpr int kUnitBytes = kUnit * kDim * 2;    // of a fetch
  static constexpr int kBarriersAt = kTeams * kStages * 2 * kKeyBytes;
  static constexpr int kSharedBytes = kBarriersAt + kTeams * kStages * 16;
  static_assert(sizeof(PagedTeams<PagedTmaTile>) <= kBarriersAt);
};

template <class Tile>
struct PagedTmaWarp {
  using T = typename Tile::T;
  static constexpr int kDim = Tile::kDim, kKeys = Tile::kKeys, kHalves = Tile::kHalves;
  static constexpr int kSteps = kDim / 16, kKeyRows = kKeys / 16;
  static constexpr int kMine = 2 * kHalves;  // queries of a lane's sums: 2t, 2t + 1 of each half

  // [keys / 16][half]: keys g and g + 8, queries 2t and 2t + 1
  using Scores = float[kKeyRows][kHalves][4];

  const PagedWork<Tile>& work;
  const PagedShape& shape;
  const int lane, g, t;
  char* const stages;      // in shared memory: keys of a tile, then its values
  uint64_t* const filled;  // barriers of a stage: of keys, of values
  uint32_t query[kSteps][kHalves][2];
  float out[kSteps][kHalves][4] = {};  // columns g and g + 8 of 16, queries 2t and 2t + 1
  float top[kMine], sum[kMine];        // the sum is of the lane's keys
  int from[kMine], to[kMine];          // positions that they see, both included

  __device__ __forceinline__ PagedTmaWarp(const PagedWork<Tile>& work, char* shared, int warp)
      : work(work),
        shape(work.shape),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4),
        stages(shared + warp * Tile::kStages * 2 * Tile::kKeyBytes),
        filled(reinterpret_cast<uint64_t*>(shared + Tile::kBarriersAt) + warp * Tile::kStages * 2) {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < 2 * Tile::kStages; ++i) barrier_init(&filled[i], kKeys / Tile::kUnit);
      barrier_init_fence();
    }
    __syncwarp();
  }

  __device__ __forceinline__ char* keys(int stage) const {
    return stages + stage * 2 * Tile::kKeyBytes;
  }
  __device__ __forceinline__ char* values(int stage) const { return keys(stage) + Tile::kKeyBytes; }

  // Whether anybody sees any of the 16 keys from `first` on; others are not in the table.
  __device__ __forceinline__ bool seen(int first) const {
    return first < work.end && first + Tile::kUnit > work.begin;
  }

  // Of the unit that this lane fetches for a tile: the row of the cache, -1 where nobody sees it.
  __device__ __forceinline__ int row_of(int tile) const {
    const int first = tile * kKeys + lane * Tile::kUnit;
    if (lane >= kKeys / Tile::kUnit || tile >= work.last_tile || !seen(first)) return -1;
    return work.cache_row(work.table(), first);
  }

  // Of the queries that this lane holds: their rows of the tables.
  __device__ __forceinline__ void find_angles(const PagedNew<T>& added,
                                              int64_t (&angle_row)[kHalves]) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + g;
      angle_row[half] = -1;
      if (added.cos && row < work.rows) {
        angle_row[half] = added.angle_row(work.item.token + work.token(row));
      }
    }
  }

  __device__ __forceinline__ void fetch(const CUtensorMap* map, char* to, uint64_t* barrier,
                                        int row) const {
    if (lane >= kKeys / Tile::kUnit) return;
    if (row < 0) return barrier_arrive(barrier);
    barrier_expect(barrier, Tile::kUnitBytes);
#pragma unroll
    for (int line = 0; line < Tile::kLines; ++line) {
      tma_load(to + line * Tile::kLineBytes + lane * Tile::kUnit * 128, map, row, line * 64,
               barrier);
    }
  }

  // angle_row: of the query of each half that this lane holds.
  __device__ __forceinline__ void load_queries(const T* q, const PagedNew<T>& added,
                                               const int64_t (&angle_row)[kHalves]) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + g;
      const bool there = row < work.rows;
      const T* row_begin = work.query(q, there ? row : 0) + 2 * t;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          query[step][half][i] =
              there ? *reinterpret_cast<const uint32_t*>(row_begin + step * 16 + i * 8) : 0;
        }
      }
      if (!added.cos || !there) continue;
#pragma unroll
      for (int step = 0; step < kSteps / 2; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float2 cosine, sine;
          angles_of(added, angle_row[half], kDim / 2, step * 16 + i * 8 + 2 * t, cosine, sine);
          rotate_pairs<T>(query[step][half][i], query[step + kSteps / 2][half][i], cosine, sine);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int row = i / 2 * 8 + 2 * t + i % 2;
      top[i] = -INFINITY;
      sum[i] = 0.0f;
      from[i] = work.position(row) - shape.left;
      to[i] = work.last_seen(work.position(row));
    }
  }

  // Of the tile in `keys`, whose first key is at position `first`, in units of log2.
  __device__ __forceinline__ void multiply_keys(Scores& score, const char* keys, int first) const {
    const uint32_t base = shared_address(keys) + lane % 16 * 128;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 2 + lane / 16;
#pragma unroll
      for (int m = 0; m < kKeyRows; ++m) {
        const uint4 k = load_matrices(base + chunk / 8 * Tile::kLineBytes + m * 2048 +
                                      (chunk % 8 ^ lane % 8) * 16);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const uint32_t* q = query[step][half];
          multiply_add<T>(score[m][half], {k.x, k.y, k.z, k.w}, q[0], q[1]);
        }
      }
    }
    const float scale = shape.scale * kLog2E, cap = shape.soft_cap * kLog2E;
    const bool all_to = first + kKeys - 1 <= work.all_to, all_from = first >= work.all_from;
    for_each(score, [&](float& x, int mine, int offset) {
      const int key = first + offset;
      x *= scale;
      // tanh y = 1 - 2 / (e^2y + 1)
      if (cap > 0.0f) {
        x = cap * (1.0f - __fdividef(2.0f, fast_exp2(x * (2.0f * kLog2E / cap)) + 1.0f));
      }
      if (!all_to) x = key <= to[mine] ? x : -INFINITY;
      if (!all_from) x = key >= from[mine] ? x : -INFINITY;
    });
  }

  // body(score, which of the lane's queries, which of the tile's keys)
  template <class Body>
  __device__ __forceinline__ void for_each(Scores& score, Body&& body) const {
#pragma unroll
    for (int m = 0; m < kKeyRows; ++m) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          body(score[m][half][i], half * 2 + i % 2, m * 16 + i / 2 * 8 + g);
        }
      }
    }
  }

  // Scores become 2^(score - top); what was summed so far is rescaled to the new maximum.
  __device__ __forceinline__ void soften(Scores& score) {
    float base[kMine], before[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) base[i] = top[i];
    for_each(score, [&](float& x, int mine, int) { base[mine] = fmaxf(base[mine], x); });
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        base[i] = fmaxf(base[i], __shfl_xor_sync(kWholeWarp, base[i], lanes));
      }
      const float highest = base[i];
      // A query may see no key so far: 0 then stands for the maximum.
      if (highest == -INFINITY) base[i] = 0.0f;
      before[i] = fast_exp2(top[i] - base[i]);
      sum[i] *= before[i];
      top[i] = highest;
    }
    for_each(score, [&](float& x, int mine, int) {
      x = fast_exp2(x - base[mine]);
      sum[mine] += x;
    });
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[step][half][i] *= before[half * 2 + i % 2];
      }
    }
  }

  // Values that nobody sees become zeros: whatever their memory holds enters no sum.
  __device__ __forceinline__ void clear_unseen(char* values, int first) const {
    const int key = first + lane;
    if (key < work.begin || key >= work.end) {
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        *reinterpret_cast<uint4*>(values + chunk / 8 * Tile::kLineBytes + lane * 128 +
                                  chunk % 8 * 16) = uint4{};
      }
    }
    fence_async_shared();
    __syncwarp();
  }

  __device__ __forceinline__ void multiply_values(const Scores& score, const char* values) {
    const uint32_t base = shared_address(values) + (lane / 16 * 8 + lane % 8) * 128;
#pragma unroll
    for (int m = 0; m < kKeyRows; ++m) {
      uint32_t weight[kHalves][2];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float* p = score[m][half];
        weight[half][0] = transpose_matrix(pack<T>(p[0], p[1]));
        weight[half][1] = transpose_matrix(pack<T>(p[2], p[3]));
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int chunk = step * 2 + lane / 8 % 2;
        const uint4 v = load_transposed(base + chunk / 8 * Tile::kLineBytes + m * 2048 +
                                        (chunk % 8 ^ lane % 8) * 16);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          multiply_add<T>(out[step][half], {v.x, v.y, v.z, v.w}, weight[half][0], weight[half][1]);
        }
      }
    }
  }

  __device__ __forceinline__ void show(PagedTeams<Tile>& teams, int team) const {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int row = i / 2 * 8 + 2 * t + i % 2;
      float total = sum[i];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        total += __shfl_xor_sync(kWholeWarp, total, lanes);
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        teams.out[team][row][step * 16 + g] = out[step][i / 2][i % 2];
        teams.out[team][row][step * 16 + 8 + g] = out[step][i / 2][2 + i % 2];
      }
      if (g == 0) {
        teams.top[team][row] = top[i];
        teams.sum[team][row] = total;
      }
    }
  }
};

}  // namespace fusewire::cuda::sm90
