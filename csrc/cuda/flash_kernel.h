// Packed attention on tensor cores, after FlashAttention-2 (Dao 2023): a block walks the keys of
// its query tile with the running maximum and sum of an online softmax; scores live in registers
// only.
//
// Queries go straight from device memory to registers: the contraction may take the columns of a
// head in any order as long as queries and keys agree, so each thread takes 16 neighbouring bytes
// of both where mma.sync has two pairs of values in mind. Values come by ldmatrix; two tiles of
// keys and values are fetched ahead by cp.async. Tiles start at the sequence's own beginning: this
// kernel's answer does not depend on the batch.
#pragma once

#include "cuda/flash_steps.h"
#include "cuda/launch.h"
#include "cuda/query_tile.h"

namespace fusewire::cuda {

// Block number: tile * heads + head, so that blocks that run together share rows of memory.
// `whole`: no sequence is longer than a tile of queries, and tile numbers are sequence numbers.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    flash_kernel(AttentionShape shape, typename Tile::T* out, const typename Tile::T* qkv,
                 bool whole, bool vectors) {
  using T = typename Tile::T;
  using Memory = FlashMemory<Tile>;
  using Steps = FlashSteps<Tile>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int head = blockIdx.x % shape.heads, number = blockIdx.x / shape.heads;
  const QueryTile tile = whole
                             ? whole_sequence(shape.offsets, number)
                             : find_query_tile<Tile::kRows>(shape.offsets, shape.sequences, number);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;

  FlashWork<T> work;
  const int64_t width = static_cast<int64_t>(shape.heads) * shape.head_dim;
  work.query = qkv + tile.token * shape.qkv_stride + head * shape.head_dim;
  work.key = work.query + width;
  work.value = work.key + width;
  work.out = out + tile.token * shape.out_stride + head * shape.head_dim;
  work.stride = shape.qkv_stride;
  work.out_stride = shape.out_stride;
  work.length = tile.length;
  work.head_dim = shape.head_dim;
  work.window = shape.window;
  work.vectors = vectors;
  // The maximum is taken of scores before the factor, which then has to be positive.
  const float scale = shape.scale * kLog2E;
  const bool direct = Tile::kPlain || (!shape.position_bias && scale > kLeastFactor);
  work.factor = direct ? scale : 1.0f;
  work.raised = direct ? 1.0f : scale;

  int begin = 0, end = tile.length;
  if (!Tile::kPlain && shape.window > 0) {
    begin = max(tile.first_query - shape.window, 0) / kKeys * kKeys;
    end = min(tile.first_query + Tile::kRows + shape.window, tile.length);
  }
  const int tiles = Tile::kOnce ? 1 : (end - begin + kKeys - 1) / kKeys;

  const auto keys_of = [&](int i) { return min(end - (begin + i * kKeys), kKeys); };
  const auto fetch_keys = [&](int i) {
    char* stage = shared + i % Tile::kStages * Tile::kStageBytes;
    const int first = begin + i * kKeys;
    Memory::copy_rows(stage, work.key, first, keys_of(i), work, Tile::key_offset);
    if (Tile::kPlain || !shape.position_bias) return;
    // bias[u] belongs to key - query = first - first_query + u - (kRows - 1).
    const int64_t span = 2 * shape.bias_span - 1;
    const int64_t from = first - tile.first_query - (Tile::kRows - 1) + shape.bias_span - 1;
    const float* table = shape.position_bias + head * span;
    for (int u = threadIdx.x; u < Tile::kBias; u += Tile::kThreads) {
      const bool wanted = from + u >= 0 && from + u < span;
      copy_4(shared_address(stage + Tile::kBiasAt) + u * 4, wanted ? table + from + u : table,
             wanted);
    }
  };
  const auto fetch_values = [&](int i) {
    Memory::copy_rows(shared + i % Tile::kStages * Tile::kStageBytes + Tile::kKeyBytes, work.value,
                      begin + i * kKeys, keys_of(i), work, Tile::value_offset);
  };
  // Three groups: the first scores need not wait for values, nor the first tile for the second.
  fetch_keys(0);
  end_copies();
  fetch_values(0);
  end_copies();
  if (tiles > 1) {
    fetch_keys(1);
    fetch_values(1);
  }
  end_copies();

  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);  // known to be one for the warp
  const int warp_row = tile.first_query + warp * Tile::kWarpRows;
  const bool active = warp_row < tile.length;
  typename Steps::State state;
  Memory::load_queries(state, work, warp_row);
#pragma unroll
  for (int r = 0; r < Tile::kRowTiles; ++r) {
    state.top[r][0] = state.top[r][1] = -INFINITY;
    state.sum[r][0] = state.sum[r][1] = 0.0f;
#pragma unroll
    for (int c = 0; c < Tile::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[r][c][i] = 0.0f;
    }
  }

  const uint32_t key_lane = shared_address(shared) + Tile::key_offset(lane / 4, lane % 4);
  const uint32_t value_lane =
      shared_address(shared) + Tile::kKeyBytes + Tile::value_offset(lane % 16, lane / 16);
  // Of a lane's first score: key - query, and where its bias lies in a stage.
  const int lane_distance = lane % 4 * 2 - warp_row - lane / 4;
  const int lane_bias = Tile::kRows - 1 + lane_distance + tile.first_query;

  const auto attend = [&](int i, auto edge) {
    constexpr bool kEdge = decltype(edge)::value;
    const int stage = i % Tile::kStages * Tile::kStageBytes, keys = keys_of(i);
    float score[Tile::kRowTiles][kKeys / 8][4] = {};
    if (active) {
      Steps::template multiply_keys<kEdge>(score, state, key_lane + stage, keys);
      const float* bias =
          Tile::kPlain || !shape.position_bias
              ? nullptr
              : reinterpret_cast<float*>(shared + stage + Tile::kBiasAt) + lane_bias;
      Steps::template adjust<kEdge>(score, work, bias, begin + i * kKeys + lane_distance, keys);
      Steps::template soften<kEdge>(state, score, work.factor, keys);
    }
    if (i == 0) {
      wait_copies<2>();
      __syncthreads();
    }
    if (active) Steps::template multiply_values<kEdge>(state, score, value_lane + stage, keys);
  };
  for (int i = 0; i < tiles; ++i) {
    if (i == 0) {
      wait_copies<2>();
    } else {
      wait_copies<1>();
    }
    __syncthreads();  // and all warps have left the stage that is fetched into next
    if (i + 2 < tiles) {
      fetch_keys(i + 2);
      fetch_values(i + 2);
    }
    end_copies();
    // The last tile ends with the sequence, and a window can begin or end anywhere.
    if (i + 1 < tiles && (Tile::kPlain || shape.window == 0)) {
      attend(i, std::false_type());
    } else {
      attend(i, std::true_type());
    }
  }
  if (active) Memory::store(state, work, warp_row);
}

// As many blocks as there can be tiles; surplus ones leave.
template <class Tile>
void launch_flash(const AttentionArguments& a, bool vectors, const Stream& stream) {
  using T = typename Tile::T;
  const SequenceBatch& batch = *a.batch;
  const bool whole = batch.max_seqlen() <= Tile::kRows;
  const int64_t tiles = whole ? batch.sequences() : batch.query_tiles(Tile::kRows);
  const int64_t key_tiles = (batch.max_seqlen() + Tile::kKeys - 1) / Tile::kKeys;
  const size_t bytes =
      Tile::kStageBytes * (key_tiles < Tile::kStages ? key_tiles : int64_t{Tile::kStages});
  if (bytes > 48 * 1024) allow_shared_memory(flash_kernel<Tile>, Tile::kStageBytes * Tile::kStages);
  launch(flash_kernel<Tile>, dim3(static_cast<unsigned>(tiles * a.heads)), dim3(Tile::kThreads),
         bytes, stream, AttentionShape(a), static_cast<T*>(a.out), static_cast<const T*>(a.qkv),
         whole, vectors);
}

}  // namespace fusewire::cuda
