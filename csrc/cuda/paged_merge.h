// The answer of a tile from its parts: those of a block's teams are put together in shared memory,
// those of the blocks that shared the keys by the last of these blocks.
#pragma once

#include "cuda/activation.h"
#include "cuda/paged_scratch.h"
#include "cuda/paged_walk.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// What teams show one another when they are through: sums of a row are relative to 2^top.
template <class Tile>
struct PagedTeams {
  static constexpr int kStride = Tile::kDim + 4;  // rows begin in different banks
  float out[Tile::kTeams][Tile::kRows][kStride];
  float top[Tile::kTeams][Tile::kRows], sum[Tile::kTeams][Tile::kRows];
};

// A row that sees none of these keys has top = -infinity: nothing is its weight.
__device__ __forceinline__ float part_weight(float top, float highest) {
  return top == -INFINITY ? 0.0f : exp2f(top - highest);
}

// Eight columns of a row of the answer.
template <class Tile>
__device__ __forceinline__ void store_answer(typename Tile::T* row, int column,
                                             const PagedShape& shape, const float (&v)[8]) {
  using T = typename Tile::T;
  constexpr int n = Vector<T>::kSize;
  if (!shape.vectors) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < shape.head_dim) row[column + i] = from_float<T>(v[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i += n) {
    Vector<T> vector;
#pragma unroll
    for (int j = 0; j < n; ++j) vector.at[j] = from_float<T>(v[i + j]);
    if (column + i < shape.head_dim) vector.store(row + column + i);
  }
}

__device__ __forceinline__ void load_eight(float (&v)[8], const float* from) {
  *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(from + 4);
}

// Writes what the teams found: the answer, or this block's part of it.
template <class Tile>
__device__ __forceinline__ void merge_teams(const PagedTeams<Tile>& teams,
                                            const PagedWork<Tile>& work, typename Tile::T* out,
                                            const PagedScratch& scratch) {
  constexpr int kEights = Tile::kDim / 8;
  const int slot = work.item.slot + work.item.part;
  for (int i = threadIdx.x; i < work.rows * kEights; i += Tile::kThreads) {
    const int row = i / kEights, column = i % kEights * 8;
    float top = -INFINITY, sum = 0.0f, total[8] = {};
#pragma unroll
    for (int team = 0; team < Tile::kTeams; ++team) top = fmaxf(top, teams.top[team][row]);
#pragma unroll
    for (int team = 0; team < Tile::kTeams; ++team) {
      const float weight = part_weight(teams.top[team][row], top);
      float part[8];
      load_eight(part, &teams.out[team][row][column]);
      sum = fmaf(teams.sum[team][row], weight, sum);
#pragma unroll
      for (int c = 0; c < 8; ++c) total[c] = fmaf(part[c], weight, total[c]);
    }
    if (work.parts == 1) {
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int c = 0; c < 8; ++c) total[c] *= inverse;
      store_answer<Tile>(work.answer(out, row), column, work.shape, total);
    } else {
      float* to = scratch.sums<Tile>(slot, row) + column;
      *reinterpret_cast<float4*>(to) = {total[0], total[1], total[2], total[3]};
      *reinterpret_cast<float4*>(to + 4) = {total[4], total[5], total[6], total[7]};
      if (column == 0) *scratch.weight<Tile>(slot, row) = {top, sum};
    }
  }
}

// Whether all parts of the tile are in the scratch now, which is true in one block: the last.
__device__ __forceinline__ bool last_part(int32_t* counter, int parts) {
  __shared__ bool last;
  __threadfence();  // this thread's results are visible before the block is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == parts - 1;
    if (last) *counter = 0;  // for the next kernel
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// `weights` is room for kRows * kMostParts<kRows> floats in shared memory. Results of other blocks
// are read past the first cache, which may not know of them.
template <class Tile>
__device__ __forceinline__ void merge_parts(float* weights, const PagedWork<Tile>& work,
                                            typename Tile::T* out, const PagedScratch& scratch) {
  constexpr int kParts = kMostParts<Tile::kRows>, kEach = kParts / kWarp;
  constexpr int kEights = Tile::kDim / 8;
  const int lane = threadIdx.x % kWarp, slot = work.item.slot, parts = work.parts;
  for (int row = threadIdx.x / kWarp; row < work.rows; row += Tile::kThreads / kWarp) {
    float2 found[kEach];
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int part = i * kWarp + lane;
      found[i] = {-INFINITY, 0.0f};
      if (part < parts) found[i] = __ldcg(scratch.weight<Tile>(slot + part, row));
      top = fmaxf(top, found[i].x);
    }
    top = reduce_lanes<kWarp>(top, Max{});
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      found[i].x = part_weight(found[i].x, top);
      sum = fmaf(found[i].x, found[i].y, sum);
    }
    sum = reduce_lanes<kWarp>(sum, Sum{});
#pragma unroll
    for (int i = 0; i < kEach; ++i) weights[row * kParts + i * kWarp + lane] = found[i].x / sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < work.rows * kEights; i += Tile::kThreads) {
    const int row = i / kEights, column = i % kEights * 8;
    const float* from = scratch.sums<Tile>(slot, row) + column;
    float total[8] = {};
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
      const float weight = weights[row * kParts + part];
      const float* at = from + part * int64_t{Tile::kRows * Tile::kDim};
      const float4 low = __ldcg(reinterpret_cast<const float4*>(at));
      const float4 high = __ldcg(reinterpret_cast<const float4*>(at + 4));
      total[0] = fmaf(low.x, weight, total[0]);
      total[1] = fmaf(low.y, weight, total[1]);
      total[2] = fmaf(low.z, weight, total[2]);
      total[3] = fmaf(low.w, weight, total[3]);
      total[4] = fmaf(high.x, weight, total[4]);
      total[5] = fmaf(high.y, weight, total[5]);
      total[6] = fmaf(high.z, weight, total[6]);
      total[7] = fmaf(high.w, weight, total[7]);
    }
    store_answer<Tile>(work.answer(out, row), column, work.shape, total);
  }
}

}  // namespace fusewire::cuda
