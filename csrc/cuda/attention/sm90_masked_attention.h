// Packed attention on Hopper with masks, separate key sequences, dropout and log_sum_exp, as
// training needs it. A block owns a tile of queries and loops over tiles of keys and values
// (sm90_rows.h).
#pragma once

#include "cuda/activation.h"
#include "cuda/attention/sm90_rows.h"
#include "cuda/attention/tiled_work.h"
#include "cuda/launch.h"

namespace fusewire::cuda::sm90 {

template <class Tile>
struct alignas(1024) MaskedMemory {
  typename Tile::T query[Tile::kOwn * Tile::kDim];
  typename Tile::Stage stages[Tile::kStages];  // of keys and values
  alignas(8) uint8_t mask[Tile::kStages][Tile::kMaskBytes];
  uint64_t query_full, full[Tile::kStages];
};

struct MaskedMaps {
  CUtensorMap q, k, v;
};

// The block's number, counted from the end of the grid, is tile * heads + head: under a causal mask
// the last tile of a sequence is the most expensive.
template <class Tile, bool kDrops>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    masked_attention_kernel(const __grid_constant__ MaskedMaps maps, AttentionShape shape,
                            typename Tile::T* out) {
  using T = typename Tile::T;
  using Work = TiledWork<false, Tile::kOwn, Tile::kOther>;
  constexpr int kKeys = Tile::kOther, kDim = Tile::kDim, kStages = Tile::kStages;
  constexpr int kGroups = kKeys / kDropoutGroup;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& m = *reinterpret_cast<MaskedMemory<Tile>*>(shared);
  let_next_start();
  if (threadIdx.x == 0) {
    barrier_init(&m.query_full, 1);
    for (int i = 0; i < kStages; ++i) barrier_init(&m.full[i], 1);
    barrier_init_fence();
  }
  const int number = gridDim.x - 1 - blockIdx.x;
  const QueryTile tile = Work::find_tile(shape, number / shape.heads);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;
  const Work work(tile, shape, number % shape.heads);
  const AttendedSequence& of = work.of;
  const int head = work.own_head;
  __syncthreads();

  const WeightDropout dropout = resolved(shape.dropout);
  Ring<kStages> from, to;
  int first_key = work.begin, coming = first_key;  // of the current tile, of the next to fetch
  const auto fetch = [&] {
    const int s = to.stage, first = coming;
    if (threadIdx.x == 0) {
      typename Tile::Stage& stage = m.stages[s];
      barrier_expect(&m.full[s], sizeof(stage));
      const int column = work.kv_head * kDim;
      load_rows<kDim>(stage.first, &maps.k, of.key + first, column, &m.full[s]);
      load_rows<kDim>(stage.second, &maps.v, of.key + first, column, &m.full[s]);
    }
    if constexpr (kDrops) {
      draw_mask<Tile::kOwn, kGroups, Tile::kThreads, 4>(m.mask[s], dropout, shape.heads,
                                                        of.token + work.own, head, first);
    }
    coming += kKeys;
    to.advance();
  };
  if (threadIdx.x == 0) {
    barrier_expect(&m.query_full, sizeof(m.query));
    load_rows<kDim>(m.query, &maps.q, of.token + work.own, head * kDim, &m.query_full);
  }
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < work.count) fetch();
  }

  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
  const int warp_row = threadIdx.x / 32 * 16;
  const float scale = shape.scale * kLog2E;
  float sum[kDim / 2] = {};
  SoftmaxRows rows;
  barrier_wait(&m.query_full, 0);

  for (int i = 0; i < work.count; ++i, first_key += kKeys, from.advance()) {
    const int s = from.stage, keys = of.keys - first_key;
    typename Tile::Stage& stage = m.stages[s];
    barrier_wait(&m.full[s], from.parity);
    __syncthreads();  // also: no thread still reads the stage that is fetched into next
    if (keys < kKeys) clear_rows<Tile>(stage, keys);

    float weight[kKeys / 2];
    wgmma_fence();
    multiply_rows<Tile>(weight, m.query, stage.first);
    wgmma_commit();
    if (i + kStages - 1 < work.count) fetch();

    // The distance of the first key to the first query.
    const int nearest = first_key - (of.position() + work.own);
    const bool hides = keys < kKeys || nearest - (Tile::kOwn - 1) < -shape.left ||
                       nearest + kKeys - 1 > shape.right;
    float correction[2];
    bool corrected;
    if (hides) {
      wgmma_wait<0>();
      pin(weight);
      const unsigned wide = static_cast<unsigned>(shape.left) + shape.right;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = warp_row + group + j / 2 * 8, key = n * 8 + pair + j % 2;
          const unsigned distance = static_cast<unsigned>(nearest + key - row + shape.left);
          if (key >= keys || distance > wide) weight[4 * n + j] = -INFINITY;
        }
      }
      corrected = softmax(weight, scale, rows, correction);
    } else {
      wgmma_wait<0>();
      pin(weight);
      corrected = softmax(weight, scale, rows, correction);
    }
    if (corrected) {
#pragma unroll
      for (int j = 0; j < kDim / 2; ++j) sum[j] *= correction[j / 2 % 2];
    }
    if constexpr (kDrops) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint2 kept = kept_keys(m.mask[s], warp_row + group + 8 * h);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {  // the output is multiplied by the factor at the end
            if (!keeps(kept, n, i)) weight[4 * n + 2 * h + i] = 0.0f;
          }
        }
      }
    }
    uint32_t p[kKeys / 16][4];
    pack_factors<T>(p, weight);
    pin<kKeys / 16>(p);
    pin(sum);
    wgmma_fence();
    add_rows<Tile>(sum, p, stage.second);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sum);
    pin<kKeys / 16>(p);
  }

  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = reduce_lanes<4>(rows.total[h], Sum{});
    inverse[h] = __fdividef(kDrops ? dropout.factor : 1.0f, total);
    const int row = warp_row + group + 8 * h;
    if (shape.log_sum_exp && pair == 0 && row < work.own_rows) {
      shape.log_sum_exp[head * shape.log_sum_exp_stride + of.token + work.own + row] =
          (rows.reference[h] * scale + log2f(total)) * (1.0f / kLog2E);
    }
  }
  const int64_t row = of.token + work.own + warp_row;
  write_rows<Tile::kDim>(sum, inverse, shared_address(m.query) + warp_row * 128,
                         out + row * shape.out_stride + head * kDim, shape.out_stride,
                         work.own_rows - warp_row);
}

}  // namespace fusewire::cuda::sm90
