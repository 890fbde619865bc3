// Packed attention on Hopper, after FlashAttention-3 (Shah et al. 2024). For each team of a block,
// a producer warp loads queries, keys and values by TMA into pipelines in shared memory
// (sm90_attention_feed.h). The consumers are warpgroups of 64 queries each, which multiply by wgmma
// (sm90_attend.h).
//
// The producer runs ahead of the consumers, into the team's next item. Rows of a tile beyond the
// end of the sequence belong to the next sequence, or are padding with arbitrary contents, NaN
// included. Such keys get weight 0, the corresponding rows of the values are set to zero in shared
// memory (0 * NaN is NaN), and such queries are not stored.
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
  // Offsets may be read before wait_for_inputs(), as in query_tile.h.
  if (sorted) block.order.template sort<Tile::kRows>(offsets, sequences);
  __syncthreads();
  wait_for_inputs();

  // The shuffle tells the compiler that the value is the same in all lanes of the warp.
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

// Returns the column, in 16-bit elements, at which v begins in the rows of k, because one tensor
// map serves both keys and values; 0 if v is not behind k in the same rows.
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
