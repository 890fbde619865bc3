// The arithmetic of the attention kernel of flash_kernel.h for one warp and one tile of keys: two
// products and the softmax between them.
#pragma once

#include "cuda/attention/flash_memory.h"

namespace fusewire::cuda {

template <class Tile>
struct FlashSteps {
  using T = typename Tile::T;
  using Work = FlashWork<T>;
  using State = FlashState<Tile>;
  using Scores = float[Tile::kRowTiles][Tile::kKeys / 8][4];
  static constexpr int kRowTiles = Tile::kRowTiles, kKeys = Tile::kKeys;
  static constexpr int kPairs = Tile::kPairs;

  // Computes scores += q k^T, 32 keys per step. In the tile at the edge (kEdge) only the first
  // `keys` keys are needed.
  template <bool kEdge>
  __device__ __forceinline__ static void multiply_keys(Scores& score, const State& s,
                                                       uint32_t key_lane, int keys) {
#pragma unroll
    for (int begin = 0; begin < kKeys; begin += 32) {
      if (kEdge && begin >= keys) break;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        uint4 k[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          k[n] = Tile::load_keys(Tile::key_at(key_lane, begin + n * 8, j * 4));
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_add<T>(score[r][begin / 8 + n], s.query[r][2 * j], k[n].x, k[n].y);
          }
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_add<T>(score[r][begin / 8 + n], s.query[r][2 * j + 1], k[n].z, k[n].w);
          }
        }
      }
      if constexpr (Tile::kOdd) {
#pragma unroll
        for (int n = begin / 8; n < begin / 8 + 4; ++n) {
          const int t = threadIdx.x % 4;  // the lane reads from byte 8t, not 16t
          const uint2 k = load_shared_8(Tile::key_at(key_lane, n * 8, kPairs * 4) - t * 8);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_add<T>(score[r][n], s.query[r][2 * kPairs], k.x, k.y);
          }
        }
      }
    }
  }

  // Computes out += p v, 16 keys per step.
  template <bool kEdge>
  __device__ __forceinline__ static void multiply_values(State& s, const Scores& p,
                                                         uint32_t value_lane, int keys) {
#pragma unroll
    for (int begin = 0; begin < kKeys; begin += 16) {
      if (kEdge && begin % 32 == 0 && begin >= keys) break;
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const float* low = p[r][begin / 8];
        const float* high = p[r][begin / 8 + 1];
        a[r][0] = pack<T>(low[0], low[1]);
        a[r][1] = pack<T>(low[2], low[3]);
        a[r][2] = pack<T>(high[0], high[1]);
        a[r][3] = pack<T>(high[2], high[3]);
      }
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; chunk += 2) {
        const uint4 v = Tile::load_values(Tile::value_at(value_lane, begin, chunk));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) multiply_add<T>(s.out[r][chunk], a[r], v.x, v.y);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) multiply_add<T>(s.out[r][chunk + 1], a[r], v.z, v.w);
      }
    }
  }

  // Calls change(score, row, key) for each of the lane's scores of the tile; row and key are
  // counted from those of its first score.
  template <bool kEdge, class Change>
  __device__ __forceinline__ static void for_each(Scores& score, int keys, Change change) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (kEdge && n % 4 == 0 && n * 8 >= keys) break;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) change(score[r][n][i], r * 16 + i / 2 * 8, n * 8 + i % 2);
      }
    }
  }

  // Computes scores = cap * tanh(scores / cap); both are in units of log2.
  template <bool kEdge>
  __device__ __forceinline__ static void cap_scores(Scores& score, float cap, int keys) {
    const float exponent = 2.0f * kLog2E / cap;  // tanh y = 1 - 2 / (e^2y + 1)
    for_each<kEdge>(score, keys, [&](float& x, int, int) {
      x = cap * (1.0f - __fdividef(2.0f, fast_exp2(x * exponent) + 1.0f));
    });
  }

  // Applies the scale (where soften() does not), the cap, the bias and the mask, and hides keys
  // beyond the sequence. `bias` points to the bias of the lane's first score, `distance` is key -
  // query of that score.
  template <bool kEdge>
  __device__ __forceinline__ static void adjust(Scores& score, const Work& work, const float* bias,
                                                int distance, int keys) {
    if constexpr (!Tile::kPlain) {
      if (work.raised != 1.0f) {
        for_each<kEdge>(score, keys, [&](float& x, int, int) { x *= work.raised; });
      }
      if (work.soft_cap > 0.0f) cap_scores<kEdge>(score, work.soft_cap * kLog2E, keys);
      if (bias) {
        for_each<kEdge>(score, keys,
                        [&](float& x, int row, int key) { x = fmaf(bias[key - row], kLog2E, x); });
      }
      if (kEdge && work.masked) {
        const unsigned seen = static_cast<unsigned>(work.left) + work.right;
        for_each<kEdge>(score, keys, [&](float& x, int row, int key) {
          x = static_cast<unsigned>(distance + key - row + work.left) <= seen ? x : -INFINITY;
        });
      }
    }
    if constexpr (kEdge) {
      const int limit = keys - threadIdx.x % 4 * 2;
      for_each<kEdge>(score, keys,
                      [&](float& x, int, int key) { x = key < limit ? x : -INFINITY; });
    }
  }

  // Drops weights, after the sums have counted them. The lane's first weight is in row `row` of the
  // dropout mask (core/dropout.h), and `first`, the tile's first key, begins a group of columns.
  // Each lane of a quad draws the random words of another group, and the four lanes exchange them.
  template <bool kEdge>
  __device__ __forceinline__ static void drop(Scores& weight, const WeightDropout& dropout,
                                              uint32_t row, int heads, int first, int keys) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 4) {
      if (kEdge && n * 8 >= keys) break;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          PhiloxWords words = dropout.words(row + (r * 16 + half * 8) * heads,
                                            first / kDropoutGroup + n + threadIdx.x % 4);
          transpose_quad(words.x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float* pair = weight[r][n + i] + 2 * half;
            pair[0] *= dropout.factor_of(words.x[i] & 0xffff);
            pair[1] *= dropout.factor_of(words.x[i] >> 16);
          }
        }
      }
    }
  }

  // Replaces scores by weights 2^((score - top) * factor), and rescales the previous sums and
  // outputs to the new maximum.
  template <bool kEdge>
  __device__ __forceinline__ static void soften(State& s, Scores& score, float factor, int keys) {
    float base[kRowTiles][2], sum[kRowTiles][2];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      base[r][0] = Tile::kOnce ? -INFINITY : s.top[r][0];
      base[r][1] = Tile::kOnce ? -INFINITY : s.top[r][1];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (kEdge && n % 4 == 0 && n * 8 >= keys) break;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        base[r][0] = fmaxf(base[r][0], fmaxf(score[r][n][0], score[r][n][1]));
        base[r][1] = fmaxf(base[r][1], fmaxf(score[r][n][2], score[r][n][3]));
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = base[r][half];
        top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
        // With a window, a row may see no key of this tile; 0 then replaces the maximum.
        base[r][half] = (!Tile::kPlain && top == -INFINITY ? 0.0f : top) * factor;
        sum[r][half] = 0.0f;
        if constexpr (!Tile::kOnce) {
          const float correction = fast_exp2(s.top[r][half] * factor - base[r][half]);
          s.top[r][half] = top;
          sum[r][half] = s.sum[r][half] * correction;
#pragma unroll
          for (int c = 0; c < Tile::kChunks; ++c) {
            s.out[r][c][2 * half] *= correction;
            s.out[r][c][2 * half + 1] *= correction;
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      if (kEdge && n % 4 == 0 && n * 8 >= keys) break;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score[r][n][i] = fast_exp2(fmaf(score[r][n][i], factor, -base[r][i / 2]));
          sum[r][i / 2] += score[r][n][i];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      s.sum[r][0] = sum[r][0];
      s.sum[r][1] = sum[r][1];
    }
  }
};

}  // namespace fusewire::cuda
