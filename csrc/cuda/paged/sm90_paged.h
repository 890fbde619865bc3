// Attention of few new tokens over paged keys and values (decoding) on Hopper: FlashAttention-2
// (Dao 2023) with keys divided among blocks as in Flash-Decoding (Dao et al. 2023;
// paged_schedule.h).
//
// Each warp of a block loops over keys of its own, every fourth tile of 32, and does not
// synchronise with others until the end. One TMA instruction of a lane fetches 16 keys of a page,
// or their values, so that loads in flight occupy no registers. Keys and values have separate
// buffers, each of which is refilled as soon as it has been used.
//
// Keys and values of earlier steps were stored before anything of this step was launched. Their
// fetch starts before wait_for_inputs() and overlaps with the kernel that computes the queries of
// this step. Those of this step are in the cache already, or come with the queries
// (sm90_paged_new.h).
#pragma once

#include "cuda/paged/paged_schedule.h"
#include "cuda/paged/sm90_paged_warp.h"

namespace fusewire::cuda::sm90 {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    paged_tma_kernel(const __grid_constant__ PagedShape shape, const PagedPlan plan,
                     const __grid_constant__ CUtensorMap key_map,
                     const __grid_constant__ CUtensorMap value_map, typename Tile::T* out,
                     const typename Tile::T* q, const PagedScratch scratch,
                     const __grid_constant__ PagedNew<typename Tile::Stored> added) {
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(1024) char shared[];
  let_next_start();
  const PagedItem item = find_item<Tile::kRows>(shape, plan, blockIdx.x);
  if (item.tokens == 0) return wait_for_inputs();
  const PagedWork<Tile> work(shape, item);
  if (item.part >= work.parts) return wait_for_inputs();

  const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);  // known to be warp-uniform
  PagedTmaWarp<Tile> attention(work, shared, warp);
  const auto fetch_keys = [&](int row, int stage) {
    attention.fetch(&key_map, attention.keys(stage), &attention.filled[2 * stage], row);
  };
  const auto fetch_values = [&](int row, int stage) {
    attention.fetch(&value_map, attention.values(stage), &attention.filled[2 * stage + 1], row);
  };
  const int first = work.first_tile + warp;
  int row[Tile::kStages];
#pragma unroll
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    row[stage] = attention.row_of(first + stage * Tile::kTeams);
  }
  const auto begin = [&](bool stored) {
#pragma unroll
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      const int tile = first + stage * Tile::kTeams;
      const bool by_earlier_steps = (tile + 1) * kKeys <= work.old;
      if (tile >= work.last_tile || stored != (added.keys || by_earlier_steps)) continue;
      fetch_keys(row[stage], stage);
      fetch_values(row[stage], stage);
    }
  };
  begin(true);
  PagedNewToken<Tile> new_token(work, added, first);
  int64_t angle_row[Tile::kHalves];
  attention.find_angles(added, angle_row);
  wait_for_inputs();
  begin(false);
  new_token.load(q);
  attention.load_queries(q, added, angle_row);

  int stage = 0, parity = 0;
#pragma unroll 1
  for (int tile = first; tile < work.last_tile; tile += Tile::kTeams) {
    const int ahead = tile + Tile::kStages * Tile::kTeams;
    const int next = attention.row_of(ahead);
    typename PagedTmaWarp<Tile>::Scores score = {};
    barrier_wait(&attention.filled[2 * stage], parity);
    if (added.keys && (tile + 1) * kKeys > work.old) {
      barrier_wait(&attention.filled[2 * stage + 1], parity);
      new_token.put_all(q, attention.keys(stage), attention.values(stage), tile * kKeys);
    }
    attention.multiply_keys(score, attention.keys(stage), tile * kKeys);
    __syncwarp();
    if (ahead < work.last_tile) fetch_keys(next, stage);
    attention.soften(score);
    barrier_wait(&attention.filled[2 * stage + 1], parity);
    if ((tile + 1) * kKeys > work.end || tile * kKeys < work.begin) {
      attention.clear_unseen(attention.values(stage), tile * kKeys);
    }
    attention.multiply_values(score, attention.values(stage));
    __syncwarp();
    if (ahead < work.last_tile) fetch_values(next, stage);
    if (++stage == Tile::kStages) stage = 0, parity ^= 1;
  }

  merge(attention, warp, shared, work, out, scratch);
}

}  // namespace fusewire::cuda::sm90
