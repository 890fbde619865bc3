// Packed attention on Hopper, after FlashAttention-3 (Shah et al. 2024): a warp for each team feeds
// queries, keys and values by TMA through rings of shared memory (sm90_attention_feed.h) to
// warpgroups of 64 queries each, whose products are wgmma (sm90_attend.h).
//
// The feeding warp runs ahead of the others into the team's next item. Rows of a tile beyond the
// sequence's end belong to the next sequence or are padding that may hold anything, NaN too: such
// keys get the weight 0, the same rows of the values are zeroed in shared memory (0 * NaN is NaN),
// and such queries are not written.
#pragma once

#include <algorithm>

#include "core/kernels.h"
#include "cuda/activation.h"
#include "cuda/attention/sm90_attend.h"
#include "cuda/element.h"
#include "cuda/launch.h"

namespace fusewire::cuda::sm90 {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_kernel(const __grid_constant__ CUtensorMap queries,
                     const __grid_constant__ CUtensorMap keys, T* out, int64_t out_stride,
                     const int32_t* offsets, int sequences, bool sorted, int heads, int group,
                     int value_column, int items, float scale) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& block = *reinterpret_cast<AttentionBlock<T, Tile>*>(shared);
  let_next_start();
  if (threadIdx.x == 0) {
    map_prefetch(&queries);
    map_prefetch(&keys);
    for (int i = 0; i < Tile::kTeams; ++i) block.team[i].init();
  }
  // As in query_tile.h before the wait.
  if (sorted) block.order.template sort<Tile::kRows>(offsets, sequences);
  __syncthreads();
  wait_for_inputs();

  // The same in a warp, which the compiler cannot know of threadIdx.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp >= 4 * Tile::kAttending) {
    registers_shrink_to<Tile::kFeedRegisters>();
    const int team = warp - 4 * Tile::kAttending;
    if (team < Tile::kTeams) {
      const TileOrder* order = sorted ? &block.order : nullptr;
      const int place = team * gridDim.x + blockIdx.x, places = Tile::kTeams * gridDim.x;
      feed<T, Tile>(block.team[team], &queries, &keys,
                    {offsets, order, sequences, heads, items, place, places}, group, value_column);
    }
  } else {
    registers_grow_to<Tile::kRegisters>();
    const int team = warp / (4 * Tile::kWarpgroups);
    Attend<T, Tile>{block.team[team], scale, team, warp / 4 % Tile::kWarpgroups, out, out_stride}
        .run();
  }
}

// Keys and values are fetched as one matrix: of v its column behind k in rows of 16-bit elements; 0
// where v does not lie there.
inline int64_t value_column(const AttentionArguments& a) {
  const int64_t bytes = static_cast<const char*>(a.v.data) - static_cast<const char*>(a.k.data);
  const int64_t column = bytes / 2, width = a.kv_heads * a.head_dim;
  const bool same_rows = a.k.stride == a.v.stride && column >= width;
  return same_rows && column + width <= a.k.stride ? column : 0;
}

template <class T, class Tile>
void run_attention(const AttentionArguments& a, int multiprocessors, const Stream& stream) {
  const SequenceBatch& batch = *a.queries;
  const auto map = [&](const HeadRows& matrix, int64_t width, int rows) {
    return matrix_map(kDTypeOf<T>, matrix.data, batch.tokens(), width, matrix.stride, rows, 64);
  };
  const int64_t column = value_column(a), kv_width = a.kv_heads * a.head_dim;
  const int sequences = static_cast<int>(batch.sequences());
  const bool equal = batch.begin() && batch.tokens() == sequences * batch.max_seqlen();
  const int64_t tiles = batch.query_tiles(Tile::kRows);
  const bool sorted =
      !equal && sequences > 1 && std::max<int64_t>(sequences, tiles) <= TileOrder::kMost;
  const int items = static_cast<int>(tiles * a.heads);
  constexpr auto kernel = attention_kernel<T, Tile>;
  constexpr size_t kBytes = sizeof(AttentionBlock<T, Tile>);
  allow_shared_memory<kernel>(kBytes, stream);
  launch(kernel, dim3(std::min(items, multiprocessors)), dim3(Tile::kThreads), kBytes, stream,
         map(a.q, a.heads * a.head_dim, 64), map(a.k, column + kv_width, Tile::kKeys),
         static_cast<T*>(a.out), a.out_stride, batch.device_offsets(), sequences, sorted,
         static_cast<int>(a.heads), static_cast<int>(a.heads / a.kv_heads),
         static_cast<int>(column), items, a.scale * kLog2E);
}

}  // namespace fusewire::cuda::sm90
