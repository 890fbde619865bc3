// Attention of new tokens over the paged keys and values of their sequences: FlashAttention-2 (Dao
// 2023) with keys divided among blocks as in Flash-Decoding (Dao et al. 2023). Decoding and prompts
// differ in the shape of the tile only.
//
// kTeams teams of kWarps warps each loop over the keys of a block and keep the running maximum and
// sum of an online softmax; each team takes every kTeams-th tile. The warps of a team own different
// rows and share the keys and values that are fetched. Each team has kStages tiles in flight.
#pragma once

#include <algorithm>

#include "cuda/paged/paged_launch.h"
#include "cuda/paged/paged_merge.h"

namespace fusewire::cuda {

template <class Tile>
__device__ __forceinline__ void sync_team() {
  if constexpr (Tile::kWarps == 1) {
    __syncwarp();
  } else {
    static_assert(Tile::kTeams == 1);
    __syncthreads();
  }
}

template <class Tile>
constexpr size_t paged_bytes() {
  const size_t walk = Tile::kTeams * Tile::kStages * Tile::kStageBytes + Tile::Warp::kOwnBytes;
  return std::max(walk, sizeof(PagedTeams<Tile>));
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    paged_kernel(PagedShape shape, PagedPlan plan, typename Tile::T* out, const typename Tile::T* q,
                 const typename Tile::Stored* keys, const typename Tile::Stored* values,
                 PagedScratch scratch) {
  constexpr int kStages = Tile::kStages, kTeams = Tile::kTeams, kKeys = Tile::kKeys;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const PagedItem item = find_item<Tile::kRows>(shape, plan, blockIdx.x);
  if (item.tokens == 0) return wait_for_inputs();
  const PagedWork<Tile> work(shape, item);
  if (item.part >= work.parts) return wait_for_inputs();

  const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);  // known to be warp-uniform
  const int team = warp / Tile::kWarps, warp_of_team = warp % Tile::kWarps;
  char* const stages = shared + team * kStages * Tile::kStageBytes;
  const PageWalk<Tile> walk(work, keys, values, warp_of_team);
  const int first = work.first_tile + team;
  int rows[kStages];
#pragma unroll
  for (int s = 0; s < kStages; ++s) rows[s] = walk.row_of(first + s * kTeams);
  int next = walk.row_of(first + kStages * kTeams);
  wait_for_inputs();
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    if (first + s * kTeams < work.last_tile) walk.fetch(stages + s * Tile::kStageBytes, rows[s]);
    end_copies();
  }
  typename Tile::Warp attention(work, q, shared + kTeams * kStages * Tile::kStageBytes,
                                warp_of_team, warp);
  int stage = 0;
  for (int tile = first; tile < work.last_tile; tile += kTeams) {
    wait_copies<kStages - 1>();
    sync_team<Tile>();
    attention.attend(stages + stage * Tile::kStageBytes, tile * kKeys);
    sync_team<Tile>();  // until no warp of the team reads the stage any more
    const int ahead = tile + kStages * kTeams;
    if (ahead < work.last_tile) walk.fetch(stages + stage * Tile::kStageBytes, next);
    end_copies();
    next = walk.row_of(ahead + kTeams);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  merge(attention, team, shared, work, out, scratch);
}

template <class Tile>
void launch_paged(const AttentionArguments& a, const PagedShape& shape, int above, int most,
                  const Stream& stream) {
  using T = typename Tile::T;
  using Stored = typename Tile::Stored;
  const PagedGrid grid = paged_grid<Tile>(a, shape, above, most);
  if (grid.blocks == 0) return;
  constexpr size_t kBytes = paged_bytes<Tile>();
  allow_shared_memory<paged_kernel<Tile>>(kBytes, stream);
  launch(paged_kernel<Tile>, dim3(grid.blocks), dim3(Tile::kThreads), kBytes, stream, shape,
         grid.plan, static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<const Stored*>(a.key_cache), static_cast<const Stored*>(a.value_cache),
         paged_scratch_of(stream));
}

// Launches a kernel for sequences with few rows (decoding), which fit one small tile, so that all
// warps divide the keys; and, if there are sequences with more rows, one with large tiles for them,
// whose warps share the keys that are fetched.
template <class Few, class Many>
void launch_paged_tiles(const AttentionArguments& a, const PagedShape& shape,
                        const Stream& stream) {
  constexpr int kFew = Few::kRows;
  const auto few = [&] {
    if constexpr (sizeof(typename Few::T) == 2) {
      static_assert(kFew == 16);
      if (sm90_paged_fits(a)) return sm90_paged_attention<typename Few::T>(a, stream);
    }
    launch_paged<Few>(a, shape, 0, kFew, stream);
  };
  few();
  if (a.queries->max_seqlen() * shape.group > kFew) {
    launch_paged<Many>(a, shape, kFew, INT32_MAX, stream);
  }
}

template <class T, class Stored>
bool paged_vectors_fit(const AttentionArguments& a) {
  return a.head_dim % Vector<Stored>::kSize == 0 && vectors_fit<T>(a.q.data, a.q.stride) &&
         vectors_fit<T>(a.out, a.out_stride) && vectors_fit<Stored>(a.key_cache, 0) &&
         vectors_fit<Stored>(a.value_cache, 0);
}

}  // namespace fusewire::cuda
