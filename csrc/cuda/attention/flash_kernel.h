// Packed attention on tensor cores, after FlashAttention-2 (Dao 2023): a block loops over the keys
// of its tile of queries and keeps the running maximum and sum of an online softmax. Scores exist
// in registers only.
//
// Queries are loaded from device memory directly into registers. The contraction may process the
// columns of a head in any order as long as queries and keys agree, so each thread loads 16
// contiguous bytes of both where mma.sync expects two separate pairs of elements. Values are loaded
// by ldmatrix. cp.async fetches two tiles of keys and values ahead. Tiles start at the beginning of
// the sequence, so the result of this kernel does not depend on the batch.
#pragma once

#include "cuda/attention/flash_steps.h"
#include "cuda/attention/query_tile.h"
#include "cuda/launch.h"

namespace fusewire::cuda {

// blockIdx.x is tile * heads + head, so that blocks that run at the same time share rows of memory.
// `whole`: no sequence is longer than a tile of queries, and tile numbers are sequence numbers.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    flash_kernel(AttentionShape shape, typename Tile::T* out, const typename Tile::T* q,
                 const typename Tile::T* k, const typename Tile::T* v, bool whole, bool vectors) {
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

  const KeyRows there =
      keys_of(tile, shape.offsets, Tile::kPlain ? nullptr : shape.key_offsets, shape.sequences);
  // The position of the tile's first query among the keys.
  const int position = tile.first_query + there.length - tile.length;
  const int kv_column = head / shape.group * shape.head_dim;
  FlashWork<T> work;
  work.query = q + tile.token * shape.q_stride + head * shape.head_dim;
  work.key = k + there.token * shape.k_stride + kv_column;
  work.value = v + there.token * shape.v_stride + kv_column;
  work.out = out + tile.token * shape.out_stride + head * shape.head_dim;
  work.log_sum_exp = shape.log_sum_exp
                         ? shape.log_sum_exp + head * shape.log_sum_exp_stride + tile.token
                         : nullptr;
  work.query_stride = shape.q_stride;
  work.key_stride = shape.k_stride;
  work.value_stride = shape.v_stride;
  work.out_stride = shape.out_stride;
  work.length = tile.length;
  work.head_dim = shape.head_dim;
  work.left = shape.left;
  work.right = shape.right;
  work.masked = shape.masked();
  work.soft_cap = shape.soft_cap;
  work.vectors = vectors;
  // The maximum is taken over unscaled scores, which is correct only if the factor is positive.
  const float scale = shape.scale * kLog2E;
  const bool direct =
      Tile::kPlain || (!shape.bias && shape.soft_cap <= 0.0f && scale > kLeastFactor);
  work.factor = direct ? scale : 1.0f;
  work.raised = direct ? 1.0f : scale;

  int begin = 0, end = there.length;
  if (!Tile::kPlain) {
    begin = max(position - shape.left, 0) / kKeys * kKeys;
    end = min(position + Tile::kRows + shape.right, end);
  }
  const int tiles = Tile::kOnce ? 1 : (end - begin + kKeys - 1) / kKeys;

  const auto count = [&](int i) { return min(end - (begin + i * kKeys), kKeys); };
  const auto fetch_keys = [&](int i) {
    char* stage = shared + i % Tile::kStages * Tile::kStageBytes;
    const int first = begin + i * kKeys;
    Memory::copy_rows(stage, work.key, work.key_stride, first, count(i), work, Tile::key_offset);
    if (Tile::kPlain || !shape.bias) return;
    // Element u of the stage's bias is that of key - query = first - position + u - (kRows - 1).
    const int64_t last = 2 * shape.bias_span - 2;
    const int64_t from = first - position - (Tile::kRows - 1) + shape.bias_span - 1;
    const float* table = shape.bias + head * (last + 1);
    for (int u = threadIdx.x; u < Tile::kBias; u += Tile::kThreads) {
      const int64_t column = max(min(from + u, last), int64_t{0});
      copy_4(shared_address(stage + Tile::kBiasAt) + u * 4, table + column, true);
    }
  };
  const auto fetch_values = [&](int i) {
    Memory::copy_rows(shared + i % Tile::kStages * Tile::kStageBytes + Tile::kKeyBytes, work.value,
                      work.value_stride, begin + i * kKeys, count(i), work, Tile::value_offset);
  };
  // Three groups of copies: the first scores need not wait for values, nor the first tile for the
  // second.
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
  const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);  // known to be warp-uniform
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
  // For the lane's first score: key - query, and the index of its bias in a stage.
  const int lane_distance = lane % 4 * 2 - (warp_row - tile.first_query + position) - lane / 4;
  const int lane_bias = Tile::kRows - 1 + lane_distance + position;

  const auto attend = [&](int i, auto edge) {
    constexpr bool kEdge = decltype(edge)::value;
    const int stage = i % Tile::kStages * Tile::kStageBytes, keys = count(i);
    float score[Tile::kRowTiles][kKeys / 8][4] = {};
    if (active) {
      Steps::template multiply_keys<kEdge>(score, state, key_lane + stage, keys);
      const float* bias =
          Tile::kPlain || !shape.bias
              ? nullptr
              : reinterpret_cast<float*>(shared + stage + Tile::kBiasAt) + lane_bias;
      Steps::template adjust<kEdge>(score, work, bias, begin + i * kKeys + lane_distance, keys);
      Steps::template soften<kEdge>(state, score, work.factor, keys);
      if constexpr (Tile::kDrops) {
        const uint32_t row = (tile.token + warp_row + lane / 4) * shape.heads + head;
        Steps::template drop<kEdge>(score, shape.dropout, row, shape.heads, begin + i * kKeys,
                                    keys);
      }
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
    __syncthreads();  // also: no warp still reads the stage that is fetched into next
    if (i + 2 < tiles) {
      fetch_keys(i + 2);
      fetch_values(i + 2);
    }
    end_copies();
    // The last tile ends with the sequence, and a mask can begin or end anywhere.
    if (i + 1 < tiles && (Tile::kPlain || !work.masked)) {
      attend(i, std::false_type());
    } else {
      attend(i, std::true_type());
    }
  }
  if (active) Memory::store(state, work, warp_row);
}

// Launches as many blocks as the batch can have tiles; surplus blocks return at once.
template <class Tile>
void launch_flash(const AttentionArguments& a, bool vectors, const Stream& stream) {
  using T = typename Tile::T;
  const SequenceBatch& batch = *a.queries;
  const bool whole = batch.max_seqlen() <= Tile::kRows;
  const int64_t tiles = whole ? batch.sequences() : batch.query_tiles(Tile::kRows);
  const int64_t key_tiles = (a.keys->max_seqlen() + Tile::kKeys - 1) / Tile::kKeys;
  const size_t bytes =
      Tile::kStageBytes * (key_tiles < Tile::kStages ? key_tiles : int64_t{Tile::kStages});
  allow_shared_memory<flash_kernel<Tile>>(Tile::kStageBytes * Tile::kStages, stream);
  launch(flash_kernel<Tile>, dim3(static_cast<unsigned>(tiles * a.heads)), dim3(Tile::kThreads),
         bytes, stream, AttentionShape(a), static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<const T*>(a.k.data), static_cast<const T*>(a.v.data), whole, vectors);
}

}  // namespace fusewire::cuda
