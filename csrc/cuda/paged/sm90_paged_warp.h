// A warp of paged attention on Hopper (sm90_paged.h): it fetches tiles of keys and values and
// attends to them. The products are those of mma.sync, transposed: keys are its 16 rows, and
// queries, which are fewer, its 8 columns.
//
// float8 codes are converted to 16-bit elements in registers. A matrix of 8 x 8 16-bit elements
// holds 8 x 16 codes, so a lane holds other columns than with 16-bit elements. Of 16 columns of
// keys, and of queries likewise, it holds four adjacent ones; of values, and therefore of the
// output, two adjacent ones.
#pragma once

#include "cuda/paged/paged_merge.h"
#include "cuda/paged/sm90_paged_new.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// kHalves is 1 if no sequence has more than 8 rows per kv head, otherwise 2. Each warp has keys and
// values of kStages tiles in flight. kBlocks blocks should fit on a multiprocessor.
template <class Element, class StoredElement, int dim, int halves, int stages, int blocks>
struct PagedTmaTile {
  using T = Element;
  using Stored = StoredElement;  // the element type of the cache
  static constexpr int kDim = dim, kHalves = halves, kStages = stages, kBlocks = blocks;
  static constexpr int kRows = 16, kKeys = 32, kTeams = 4, kThreads = 32 * kTeams;
  static constexpr bool kFloat8 = sizeof(Stored) == 1;
  static constexpr int kUnit = 16;                            // keys per fetch
  static constexpr int kRowBytes = kDim * sizeof(Stored);     // per key
  static constexpr int kChunks = kRowBytes / 16;              // chunks of 16 bytes per key
  static constexpr int kLines = (kRowBytes + 127) / 128;      // lines of 128 bytes per key
  static constexpr int kLineKeys = kLines * 128 / kRowBytes;  // keys per line
  static constexpr int kKeyBytes = kKeys * kRowBytes;         // keys of a tile, or its values
  static constexpr int kLineBytes = kKeyBytes / kLines;       // the same line of all keys
  static constexpr int kUnitBytes = kUnit * kRowBytes;        // per fetch
  static constexpr int kMatrixBytes = 16 * 128 / kLineKeys;   // offset of the next 16 keys
  static constexpr int kBarriersAt = kTeams * kStages * 2 * kKeyBytes;
  static constexpr int kSharedBytes = kBarriersAt + kTeams * kStages * 16;
  static_assert(sizeof(PagedTeams<PagedTmaTile>) <= kBarriersAt);

  // Returns the offset of a chunk of a key in a tile. Lines are swizzled (sm90_tma.h).
  __device__ __forceinline__ static int at(int key, int chunk) {
    const int line = key / kLineKeys, in_line = key % kLineKeys * kChunks + chunk % 8;
    return chunk / 8 * kLineBytes + line * 128 + (in_line ^ line % 8) * 16;
  }
};

// Return the operands of the products from four matrices: with 16-bit elements those of one step of
// 16 columns.
template <class T>
__device__ __forceinline__ void key_operands(const uint4& k, uint32_t (&a)[1][4]) {
  a[0][0] = k.x, a[0][1] = k.y, a[0][2] = k.z, a[0][3] = k.w;
}
template <class T>
__device__ __forceinline__ void value_operands(const uint4& v, uint32_t (&a)[1][4]) {
  key_operands<T>(v, a);
}
// The same with float8 codes: those of two steps.
template <class T>
__device__ __forceinline__ void key_operands(const uint4& k, uint32_t (&a)[2][4]) {
  const uint32_t low[] = {k.x, k.z}, high[] = {k.y, k.w};  // keys 0 to 7 and 8 to 15
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint2 x = widen_four<T>(low[step]), y = widen_four<T>(high[step]);
    a[step][0] = x.x, a[step][1] = y.x, a[step][2] = x.y, a[step][3] = y.y;
  }
}
template <class T>
__device__ __forceinline__ void value_operands(const uint4& v, uint32_t (&a)[2][4]) {
  const uint32_t low[] = {v.x, v.y}, high[] = {v.z, v.w};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint2 x = widen_columns<T>(low[step]), y = widen_columns<T>(high[step]);
    a[step][0] = x.x, a[step][1] = x.y, a[step][2] = y.x, a[step][3] = y.y;
  }
}

template <class Tile>
struct PagedTmaWarp {
  using T = typename Tile::T;
  using Stored = typename Tile::Stored;
  static constexpr int kDim = Tile::kDim, kKeys = Tile::kKeys, kHalves = Tile::kHalves;
  static constexpr int kSteps = kDim / 16, kKeyRows = kKeys / 16;
  static constexpr int kAtOnce = Tile::kFloat8 ? 2 : 1;  // steps per load of four matrices
  static constexpr int kMine = 2 * kHalves;  // a lane's queries: 2t and 2t + 1 of each half

  // [keys / 16][half]: keys g and g + 8, queries 2t and 2t + 1
  using Scores = float[kKeyRows][kHalves][4];

  const PagedWork<Tile>& work;
  const PagedShape& shape;
  const int lane, g, t;
  char* const stages;      // in shared memory: the keys of a tile, then its values
  uint64_t* const filled;  // two barriers per stage: for keys and for values
  uint32_t query[kSteps][kHalves][2];
  // [..][half]: columns g and g + 8 of 16 (of a float8 cache 2g and 2g + 1), queries 2t and 2t + 1
  float out[kSteps][kHalves][4] = {};
  float top[kMine], sum[kMine];  // sum: over the lane's keys
  int from[kMine], to[kMine];    // the first and last position that each query sees

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

  // Returns whether any query sees any of the 16 keys from `first` on; the block table may lack
  // others.
  __device__ __forceinline__ bool seen(int first) const {
    return first < work.end && first + Tile::kUnit > work.begin;
  }

  // Returns the row of the cache of the 16 keys that this lane fetches for a tile, or -1 if none is
  // seen.
  __device__ __forceinline__ int row_of(int tile) const {
    const int first = tile * kKeys + lane * Tile::kUnit;
    if (lane >= kKeys / Tile::kUnit || tile >= work.last_tile || !seen(first)) return -1;
    return work.cache_row(work.table(), first);
  }

  // Looks up the rows of the RoPE tables for the queries that this lane holds.
  __device__ __forceinline__ void find_angles(const PagedNew<Stored>& added,
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
      tma_load(to + line * Tile::kLineBytes + lane * (Tile::kUnitBytes / Tile::kLines), map,
               row / Tile::kLineKeys, line * (128 / int{sizeof(Stored)}), barrier);
    }
  }

  // Returns the first of the two columns in query[step][..][i].
  __device__ __forceinline__ int query_column(int step, int i) const {
    return step * 16 + (Tile::kFloat8 ? 4 * t + 2 * i : 2 * t + 8 * i);
  }

  // Loads the queries and applies RoPE. angle_row: the row of the tables for the lane's query of
  // each half.
  __device__ __forceinline__ void load_queries(const T* q, const PagedNew<Stored>& added,
                                               const int64_t (&angle_row)[kHalves]) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + g;
      const bool there = row < work.rows;
      const T* row_begin = work.query(q, there ? row : 0);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          query[step][half][i] =
              there ? *reinterpret_cast<const uint32_t*>(row_begin + query_column(step, i)) : 0;
        }
      }
      if (!added.cos || !there) continue;
#pragma unroll
      for (int step = 0; step < kSteps / 2; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float2 cosine, sine;
          angles_of(added, angle_row[half], kDim / 2, query_column(step, i), cosine, sine);
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

  // Computes the masked scores of the tile in `keys`, whose first key is at position `first`, in
  // units of log2.
  __device__ __forceinline__ void multiply_keys(Scores& score, const char* keys, int first) const {
    const uint32_t base = shared_address(keys);
#pragma unroll
    for (int step = 0; step < kSteps; step += kAtOnce) {
      const int chunk = step * 2 / kAtOnce + lane / 16;
#pragma unroll
      for (int m = 0; m < kKeyRows; ++m) {
        uint32_t k[kAtOnce][4];
        key_operands<T>(load_matrices(base + Tile::at(lane % 16, chunk) + m * Tile::kMatrixBytes),
                        k);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            const uint32_t* q = query[step + i][half];
            multiply_add<T>(score[m][half], k[i], q[0], q[1]);
          }
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

  // Calls body(score, index of the lane's query, index of the key in the tile) for each of its
  // scores.
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

  // Replaces scores by weights 2^(score - top), and rescales the previous sums and outputs to the
  // new maximum.
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
      // A query may have seen no key so far; 0 then replaces the maximum.
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

  // Sets values that no query sees to zero, because their memory may hold anything, NaN too.
  __device__ __forceinline__ void clear_unseen(char* values, int first) const {
    const int key = first + lane;
    if (key < work.begin || key >= work.end) {
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        *reinterpret_cast<uint4*>(values + Tile::at(lane, chunk)) = uint4{};
      }
    }
    fence_async_shared();
    __syncwarp();
  }

  __device__ __forceinline__ void multiply_values(const Scores& score, const char* values) {
    const uint32_t base = shared_address(values);
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
      for (int step = 0; step < kSteps; step += kAtOnce) {
        const int key = lane / 16 * 8 + lane % 8, chunk = step * 2 / kAtOnce + lane / 8 % 2;
        uint32_t v[kAtOnce][4];
        value_operands<T>(load_transposed(base + Tile::at(key, chunk) + m * Tile::kMatrixBytes), v);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            multiply_add<T>(out[step + i][half], v[i], weight[half][0], weight[half][1]);
          }
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
        float* const to = teams.out[team][row] + step * 16;
        to[Tile::kFloat8 ? 2 * g : g] = out[step][i / 2][i % 2];
        to[Tile::kFloat8 ? 2 * g + 1 : g + 8] = out[step][i / 2][2 + i % 2];
      }
      if (g == 0) {
        teams.top[team][row] = top[i];
        teams.sum[team][row] = total;
      }
    }
  }
};

}  // namespace fusewire::cuda::sm90
