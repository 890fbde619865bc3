// A warp of paged attention on tensor cores: the arithmetic of flash_steps.h, with the masking of
// scores that decoding needs.
#pragma once

#include "cuda/attention/flash_steps.h"
#include "cuda/paged/paged_merge.h"

namespace fusewire::cuda {

template <class Tile>
struct MmaWarp {
  using T = typename Tile::T;
  using Steps = FlashSteps<Tile>;
  using Scores = typename Steps::Scores;
  static constexpr size_t kOwnBytes = 0;  // of shared memory besides the stages
  static constexpr int kKeys = Tile::kKeys;

  const PagedWork<Tile>& work;
  const int warp_row;  // the warp's first row in the tile
  FlashState<Tile> state;
  float factor, raised;       // as in FlashWork, raised in units of log2
  int position[2];            // positions of the lane's rows
  int lowest, highest;        // range of positions of the warp's rows
  uint32_t key_at, value_at;  // offsets of the lane in a stage

  __device__ __forceinline__ MmaWarp(const PagedWork<Tile>& work, const T* q, char*,
                                     int warp_of_team, int)
      : work(work), warp_row(warp_of_team * 16) {
    const PagedShape& shape = work.shape;
    const int lane = threadIdx.x % 32;
    FlashMemory<Tile>::load_rows(
        state, shape.vectors, [&](int row) { return work.query(q, warp_row + row); },
        [&](int row) { return warp_row + row < work.rows ? shape.head_dim : 0; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + half * 8 + lane / 4;
      state.top[0][half] = -INFINITY;
      state.sum[0][half] = 0.0f;
      position[half] = work.position(row);
    }
#pragma unroll
    for (int c = 0; c < Tile::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[0][c][i] = 0.0f;
    }
    // The maximum is taken over unscaled scores, which is correct only if the factor is positive.
    const float scale = shape.scale * kLog2E;
    const bool direct = !shape.bias && shape.soft_cap <= 0.0f && scale > kLeastFactor;
    factor = direct ? scale : 1.0f;
    raised = direct ? 1.0f : scale;
    lowest = work.position(warp_row);
    highest = work.position(min(warp_row + 16, work.rows) - 1);
    key_at = Tile::key_lane(lane);
    value_at = Tile::kKeyBytes + Tile::value_lane(lane);
  }

  // Attends to the tile in `stage`, whose first key is at position `first`.
  __device__ __forceinline__ void attend(const char* stage, int first) {
    if (warp_row >= work.rows || first > work.last_seen(highest)) return;
    if (first + kKeys <= lowest - work.shape.left) return;
    const uint32_t base = shared_address(stage);
    float score[1][kKeys / 8][4] = {};
    Steps::template multiply_keys<false>(score, state, base + key_at, kKeys);
    adjust(score, first);
    Steps::template soften<false>(state, score, factor, kKeys);
    Steps::template multiply_values<false>(state, score, base + value_at, kKeys);
  }

  __device__ __forceinline__ void adjust(Scores& score, int first) const {
    const PagedShape& shape = work.shape;
    const int lane_key = first + threadIdx.x % 4 * 2;  // position of the lane's first key
    if (raised != 1.0f) {
      Steps::template for_each<false>(score, kKeys, [&](float& x, int, int) { x *= raised; });
    }
    if (shape.soft_cap > 0.0f) {
      Steps::template cap_scores<false>(score, shape.soft_cap * kLog2E, kKeys);
    }
    if (shape.bias) {
      // Recomputed for every tile: otherwise the heads would occupy registers even without a bias.
      int row_of_lane = warp_row + threadIdx.x % 32 / 4;
      asm volatile("" : "+r"(row_of_lane));
      const int bias[2] = {shape.bias_row(work.query_head(row_of_lane)),
                           shape.bias_row(work.query_head(row_of_lane + 8))};
      Steps::template for_each<false>(score, kKeys, [&](float& x, int row, int key) {
        const int distance = lane_key + key - position[row / 8];
        x = fmaf(shape.bias_at(bias[row / 8], distance), kLog2E, x);
      });
    }
    if (first + kKeys - 1 > work.last_seen(lowest)) {
      Steps::template for_each<false>(score, kKeys, [&](float& x, int row, int key) {
        x = lane_key + key <= work.last_seen(position[row / 8]) ? x : -INFINITY;
      });
    }
    if (first < highest - shape.left) {
      Steps::template for_each<false>(score, kKeys, [&](float& x, int row, int key) {
        x = lane_key + key >= position[row / 8] - shape.left ? x : -INFINITY;
      });
    }
  }

  __device__ __forceinline__ void show(PagedTeams<Tile>& teams, int team) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + half * 8 + g;
      float sum = state.sum[0][half];
      sum += __shfl_xor_sync(kWholeWarp, sum, 1);
      sum += __shfl_xor_sync(kWholeWarp, sum, 2);
#pragma unroll
      for (int c = 0; c < Tile::kChunks; c += 2) {
        const float *first = state.out[0][c] + 2 * half, *second = state.out[0][c + 1] + 2 * half;
        Tile::put(teams.out[team][row] + 8 * c, t, {first[0], first[1]}, {second[0], second[1]});
      }
      if (t == 0) {
        teams.top[team][row] = state.top[0][half] * factor;
        teams.sum[team][row] = sum;
      }
    }
  }
};

// Each of the kWarps warps of a team owns 16 rows. Teams loop over tiles of kKeys keys and values.
template <class Element, int dim, int warps, int teams, int keys, int stages, int blocks>
struct PagedMmaTile : FlashTile<Element, dim, warps, 1, keys, blocks, FlashMode::kGeneral> {
  using Base = FlashTile<Element, dim, warps, 1, keys, blocks, FlashMode::kGeneral>;
  using Warp = MmaWarp<PagedMmaTile>;
  using Stored = Element;
  static constexpr int kTeams = teams, kStages = stages, kThreads = 32 * warps * teams;
  static constexpr int kStageBytes = Base::kBiasAt;  // keys and values, no bias

  // Return the offset in a stage at which a lane begins to read keys or values.
  __device__ __forceinline__ static uint32_t key_lane(int lane) {
    return Base::key_offset(lane / 4, lane % 4);
  }
  __device__ __forceinline__ static uint32_t value_lane(int lane) {
    return Base::value_offset(lane % 16, lane / 16);
  }
  // Stores the sums of 16 columns that lane t of a quad holds: a pair from each of two products.
  __device__ __forceinline__ static void put(float* to, int t, float2 first, float2 second) {
    *reinterpret_cast<float2*>(to + 2 * t) = first;
    *reinterpret_cast<float2*>(to + 8 + 2 * t) = second;
  }
};

}  // namespace fusewire::cuda
