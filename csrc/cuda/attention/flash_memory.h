// The data of the attention kernel of flash_kernel.h, and its movement between device memory,
// shared memory and registers.
#pragma once

#include <cmath>

#include "cuda/activation.h"
#include "cuda/attention/flash_tile.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// Scales (times log2 e) that are not above this are applied to the scores before their maximum is
// taken.
constexpr float kLeastFactor = 1e-30f;

// What one block works on. Rows of the pointers are tokens of the sequence; keys have their own.
template <class T>
struct FlashWork {
  const T *query, *key, *value;
  T* out;
  float* log_sum_exp;  // null: not wanted
  int64_t query_stride, key_stride, value_stride, out_stride;
  int length, head_dim, left, right;  // length: number of queries of the sequence
  float factor;                       // multiplies a score in the exponential
  float raised;  // multiplies a score before it is capped and the bias is added; 1: not needed
  float soft_cap;
  bool masked, vectors;
};

// What one warp keeps in registers.
template <class Tile>
struct FlashState {
  uint32_t query[Tile::kRowTiles][Tile::kDim / 16][4];
  float out[Tile::kRowTiles][Tile::kChunks][4];
  // Of rows g and g + 8: the maximum score of the row, and this lane's part of the sum of weights.
  float top[Tile::kRowTiles][2], sum[Tile::kRowTiles][2];
};

template <class Tile>
struct FlashMemory {
  using T = typename Tile::T;
  using Work = FlashWork<T>;
  using State = FlashState<Tile>;
  static constexpr int kRowTiles = Tile::kRowTiles, kKeys = Tile::kKeys;

  // Copies `keys` rows of keys or values, from row `first` on, to shared memory, and zeros up to a
  // multiple of 32 rows.
  template <class Offset>
  __device__ __forceinline__ static void copy_rows(char* to, const T* from, int64_t stride,
                                                   int first, int keys, const Work& work,
                                                   Offset offset) {
    constexpr bool kEven = Tile::kThreads % Tile::kChunks == 0;
    const uint32_t base = shared_address(to);
    const int id = threadIdx.x;
    const T* source = from + first * stride;
#pragma unroll
    for (int i = 0; i < kKeys * Tile::kChunks; i += Tile::kThreads) {
      if (i / Tile::kChunks >= (keys + 31) / 32 * 32) break;
      const int row = kEven ? i / Tile::kChunks + id / Tile::kChunks : (i + id) / Tile::kChunks;
      const int chunk = kEven ? id % Tile::kChunks : (i + id) % Tile::kChunks;
      if (!kEven && row >= kKeys) break;
      if constexpr (Tile::kPlain) {
        copy_16(base + offset(row, chunk), source + row * stride + chunk * 8, row < keys);
      } else if (work.vectors) {
        const bool wanted = row < keys && chunk * 8 < work.head_dim;
        copy_16(base + offset(row, chunk), wanted ? source + row * stride + chunk * 8 : from,
                wanted);
      } else {
        *reinterpret_cast<uint4*>(to + offset(row, chunk)) =
            load_chunk(source + row * stride, chunk * 8, row < keys ? work.head_dim : 0, false);
      }
    }
  }

  // Loads the warp's queries into registers. `row_at(row)` returns a pointer to row `row` of the
  // warp, `width_at(row)` the number of its elements to load; the others are zeros.
  template <class RowAt, class WidthAt>
  __device__ __forceinline__ static void load_rows(State& s, bool vectors, RowAt row_at,
                                                   WidthAt width_at) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = r * 16 + half * 8 + g;
        const T* query = row_at(row);
        const int width = width_at(row);
#pragma unroll
        for (int j = 0; j < Tile::kPairs; ++j) {
          const uint4 q = load_chunk(query, (j * 4 + t) * 8, width, vectors);
          s.query[r][2 * j][half] = q.x;
          s.query[r][2 * j][2 + half] = q.y;
          s.query[r][2 * j + 1][half] = q.z;
          s.query[r][2 * j + 1][2 + half] = q.w;
        }
        if constexpr (Tile::kOdd) {  // half a chunk per lane: lanes 2i and 2i + 1 load the same one
          const uint4 q = load_chunk(query, Tile::kPairs * 32 + t / 2 * 8, width, vectors);
          s.query[r][2 * Tile::kPairs][half] = t % 2 ? q.z : q.x;
          s.query[r][2 * Tile::kPairs][2 + half] = t % 2 ? q.w : q.y;
        }
      }
    }
  }

  __device__ __forceinline__ static void load_queries(State& s, const Work& work, int warp_row) {
    load_rows(
        s, Tile::kPlain || work.vectors,
        [&](int row) { return work.query + (warp_row + row) * work.query_stride; },
        [&](int row) {
          return warp_row + row < work.length ? (Tile::kPlain ? Tile::kDim : work.head_dim) : 0;
        });
  }

  __device__ __forceinline__ static void store(State& s, const Work& work, int warp_row) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = s.sum[r][half];
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        const float inverse = __fdividef(1.0f, sum);
        const int row = warp_row + r * 16 + half * 8 + g;
        if (Tile::kSaves && work.log_sum_exp && t == 0 && row < work.length) {
          work.log_sum_exp[row] = (s.top[r][half] * work.factor + log2f(sum)) * (1.0f / kLog2E);
        }
        T* out = work.out + row * work.out_stride;
        const int width = row < work.length ? (Tile::kPlain ? Tile::kDim : work.head_dim) : 0;
#pragma unroll
        for (int c = 0; c < Tile::kChunks; c += 4) {
          uint32_t w[4] = {};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (c + i >= Tile::kChunks) continue;
            const float* pair = s.out[r][c + i] + 2 * half;
            w[i] = pack<T>(pair[0] * inverse, pair[1] * inverse);
          }
          transpose_quad(w);
          store_chunk(out, (c + t) * 8, width, Tile::kPlain || work.vectors,
                      {w[0], w[1], w[2], w[3]});
        }
      }
    }
  }
};

}  // namespace fusewire::cuda
