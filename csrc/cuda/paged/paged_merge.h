// Combines the output of a tile from its parts. The parts of a block's teams are combined in shared
// memory; those of the blocks that divided the keys are combined by the last of these blocks to
// finish.
#pragma once

#include "cuda/activation.h"
#include "cuda/paged/paged_scratch.h"
#include "cuda/paged/paged_walk.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

// The results of the teams, in shared memory. The sums of a row are relative to 2^top.
template <class Tile>
struct PagedTeams {
  static constexpr int kStride = Tile::kDim + 4;  // rows begin in different banks
  float out[Tile::kTeams][Tile::kRows][kStride];
  float top[Tile::kTeams][Tile::kRows], sum[Tile::kTeams][Tile::kRows];
};

// Returns the factor 2^(top - highest) of a part. A row that sees none of the part's keys has top =
// -infinity and factor 0.
__device__ __forceinline__ float part_weight(float top, float highest) {
  return top == -INFINITY ? 0.0f : exp2f(top - highest);
}

// Stores four columns of a row of the output, rounded to T.
template <class Tile>
__device__ __forceinline__ void store_answer(typename Tile::T* row, int column,
                                             const PagedShape& shape, const float4& v) {
  using T = typename Tile::T;
  const Pack<T, 4> four = {from_float<T>(v.x), from_float<T>(v.y), from_float<T>(v.z),
                           from_float<T>(v.w)};
  if (shape.vectors) {
    if (column < shape.head_dim) *reinterpret_cast<Pack<T, 4>*>(row + column) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < shape.head_dim) row[column + i] = four.at[i];
  }
}

__device__ __forceinline__ void add_scaled(float4& sum, const float4& v, float scale) {
  sum.x = fmaf(v.x, scale, sum.x);
  sum.y = fmaf(v.y, scale, sum.y);
  sum.z = fmaf(v.z, scale, sum.z);
  sum.w = fmaf(v.w, scale, sum.w);
}

__device__ __forceinline__ float4 scaled(const float4& v, float scale) {
  return {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}

// Combines the results of the teams and stores the output or, if the keys are divided, this block's
// part of it in the scratch memory.
template <class Tile>
__device__ __forceinline__ void merge_teams(const PagedTeams<Tile>& teams,
                                            const PagedWork<Tile>& work, typename Tile::T* out,
                                            const PagedScratch& scratch) {
  constexpr int kFours = Tile::kDim / 4;
  const int slot = work.item.slot + work.item.part;
  for (int i = threadIdx.x; i < work.rows * kFours; i += Tile::kThreads) {
    const int row = i / kFours, column = i % kFours * 4;
    float top = -INFINITY, sum = 0.0f;
    float4 total = {};
#pragma unroll
    for (int team = 0; team < Tile::kTeams; ++team) top = fmaxf(top, teams.top[team][row]);
#pragma unroll
    for (int team = 0; team < Tile::kTeams; ++team) {
      const float weight = part_weight(teams.top[team][row], top);
      sum = fmaf(teams.sum[team][row], weight, sum);
      add_scaled(total, *reinterpret_cast<const float4*>(&teams.out[team][row][column]), weight);
    }
    if (work.parts == 1) {
      store_answer<Tile>(work.answer(out, row), column, work.shape,
                         scaled(total, work.shape.v_scale / sum));
    } else {
      *reinterpret_cast<float4*>(scratch.sums<Tile>(slot, row) + column) = total;
      if (column == 0) *scratch.weight<Tile>(slot, row) = {top, sum};
    }
  }
}

// Returns true in exactly one block of the tile, the last to call it, when all parts are in the
// scratch memory.
__device__ __forceinline__ bool last_part(int32_t* counter, int parts) {
  __shared__ bool last;
  __threadfence();  // makes this thread's results visible before the block is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == parts - 1;
    if (last) *counter = 0;  // as the next kernel expects it
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Combines the parts of all blocks and stores the output. Loads bypass the L1 cache, which is not
// coherent with the writes of other blocks. Each thread keeps the loads of kTogether parts in
// flight, because the merge is a chain of latencies.
template <class Tile>
__device__ __forceinline__ void merge_parts(const PagedWork<Tile>& work, typename Tile::T* out,
                                            const PagedScratch& scratch) {
  constexpr int kFours = Tile::kDim / 4, kTogether = 8;
  const int slot = work.item.slot, parts = work.parts;
  for (int i = threadIdx.x; i < work.rows * kFours; i += Tile::kThreads) {
    const int row = i / kFours, column = i % kFours * 4;
    float top = -INFINITY, sum = 0.0f;
    float4 total = {};
#pragma unroll 1
    for (int first = 0; first < parts; first += kTogether) {
      float2 weight[kTogether];
      float4 part[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int at = slot + min(first + k, parts - 1);
        weight[k] = __ldcg(scratch.weight<Tile>(at, row));
        part[k] = __ldcg(reinterpret_cast<const float4*>(scratch.sums<Tile>(at, row) + column));
      }
      float highest = top;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= parts) weight[k].x = -INFINITY;
        highest = fmaxf(highest, weight[k].x);
      }
      const float before = part_weight(top, highest);
      total = scaled(total, before);
      sum *= before;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const float share = part_weight(weight[k].x, highest);
        sum = fmaf(weight[k].y, share, sum);
        add_scaled(total, part[k], share);
      }
      top = highest;
    }
    store_answer<Tile>(work.answer(out, row), column, work.shape,
                       scaled(total, work.shape.v_scale / sum));
  }
}

// Merges the results of the block's teams and, in the last block of the tile, those of all blocks.
// The stages of keys and values are reused for the sums.
template <class Tile, class Attention>
__device__ __forceinline__ void merge(const Attention& attention, int team, char* shared,
                                      const PagedWork<Tile>& work, typename Tile::T* out,
                                      const PagedScratch& scratch) {
  __syncthreads();
  auto& teams = *reinterpret_cast<PagedTeams<Tile>*>(shared);
  attention.show(teams, team);
  __syncthreads();
  merge_teams(teams, work, out, scratch);
  if (work.parts == 1) return;
  if (!last_part(scratch.counters + work.item.slot, work.parts)) return;
  merge_parts(work, out, scratch);
}

}  // namespace fusewire::cuda
