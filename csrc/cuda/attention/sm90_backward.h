// The backward pass of packed attention on Hopper, after FlashAttention-2 (Dao 2023, algorithm 2):
// the products and their order are those of flash_backward.cu, computed by wgmma (sm90_rows.h).
#pragma once

#include "cuda/activation.h"
#include "cuda/attention/sm90_rows.h"
#include "cuda/attention/tiled_work.h"
#include "cuda/launch.h"

namespace fusewire::cuda::sm90 {

template <class Tile>
struct alignas(1024) BackwardMemory {
  using T = typename Tile::T;
  static constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther, kStages = Tile::kStages;

  T first[kOwn * Tile::kDim];   // q or k
  T second[kOwn * Tile::kDim];  // dout or v
  typename Tile::Stage stages[kStages];
  // log_sum_exp and dots of the queries, which are either the block's own rows or those of a stage.
  float log_sum_exp[kOwn], dots[kOwn];
  float passing_log_sum_exp[kStages][kOther], passing_dots[kStages][kOther];
  alignas(8) uint8_t mask[kStages][Tile::kMaskBytes];
  uint64_t own_full, full[kStages];
};

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};

// The block's number is tile * heads + head, in tiles and heads of what it owns. Blocks start with
// the most expensive tiles under a causal mask: for queries a sequence's last tile, for keys its
// first. dots [heads, dots_stride] holds the sums of dout * out, which the kernel of the queries
// writes.
template <class Tile, bool kOwnsKeys>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_kernel(const __grid_constant__ BackwardMaps maps,
                    AttentionBackwardShape<typename Tile::T> g, float* dots, int64_t dots_stride) {
  using T = typename Tile::T;
  using Work = TiledWork<kOwnsKeys, Tile::kOwn, Tile::kOther>;
  constexpr int kOther = Tile::kOther, kN = kOther / 8, kDim = Tile::kDim;
  constexpr int kStages = Tile::kStages;
  constexpr int kQueries = kOwnsKeys ? kOther : Tile::kOwn;
  constexpr int kKeys = kOwnsKeys ? Tile::kOwn : kOther, kGroups = kKeys / kDropoutGroup;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& m = *reinterpret_cast<BackwardMemory<Tile>*>(shared);
  const AttentionShape& shape = g.forward;
  let_next_start();
  if (threadIdx.x == 0) {
    barrier_init(&m.own_full, 1);
    for (int i = 0; i < kStages; ++i) barrier_init(&m.full[i], 1);
    barrier_init_fence();
  }
  const int number = kOwnsKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const int heads = kOwnsKeys ? g.kv_heads() : shape.heads;
  const QueryTile tile = Work::find_tile(shape, number / heads);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;
  const Work work(tile, shape, number % heads);
  const AttendedSequence& of = work.of;
  __syncthreads();

  const WeightDropout dropout = resolved(shape.dropout);
  Ring<kStages> from, to;
  Passing passing = work.first_passing(), coming = passing;  // coming: the next tile to fetch
  const auto fetch = [&] {
    const int s = to.stage;
    if (threadIdx.x == 0) {
      typename Tile::Stage& stage = m.stages[s];
      barrier_expect(&m.full[s], sizeof(stage));
      const int row = (kOwnsKeys ? of.token : of.key) + coming.first;
      const int column = (kOwnsKeys ? coming.head : work.kv_head) * kDim;
      load_rows<kDim>(stage.first, kOwnsKeys ? &maps.q : &maps.k, row, column, &m.full[s]);
      load_rows<kDim>(stage.second, kOwnsKeys ? &maps.dout : &maps.v, row, column, &m.full[s]);
    }
    if constexpr (kOwnsKeys) {
      // Rows beyond the sequence can take zeros, because q and dout are zero there.
      const float* sums = shape.log_sum_exp + coming.head * shape.log_sum_exp_stride + of.token;
      const float* products = dots + coming.head * dots_stride + of.token;
      const int rows = of.queries - coming.first;
      static_assert(Tile::kThreads == 2 * kOther);
      const int row = threadIdx.x % kOther;
      const bool wanted = row < rows, of_sums = threadIdx.x < kOther;
      const float* source = of_sums ? sums : products;
      float* place = of_sums ? m.passing_log_sum_exp[s] : m.passing_dots[s];
      copy_4(shared_address(place + row), wanted ? source + coming.first + row : source, wanted);
    }
    end_copies();
    if (dropout.any) {
      draw_mask<kQueries, kGroups, Tile::kThreads, 4>(
          m.mask[s], dropout, shape.heads, of.token + (kOwnsKeys ? coming.first : work.own),
          coming.head, kOwnsKeys ? work.own : coming.first);
    }
    work.advance(coming);
    to.advance();
  };

  if (threadIdx.x == 0) {
    barrier_expect(&m.own_full, sizeof(m.first) + sizeof(m.second));
    const int row = (kOwnsKeys ? of.key : of.token) + work.own, column = work.own_head * kDim;
    load_rows<kDim>(m.first, kOwnsKeys ? &maps.k : &maps.q, row, column, &m.own_full);
    load_rows<kDim>(m.second, kOwnsKeys ? &maps.v : &maps.dout, row, column, &m.own_full);
  }
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < work.count)
      fetch();
    else
      end_copies();
  }

  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
  const int warp_row = threadIdx.x / 32 * 16;
  const float scale = shape.scale * kLog2E;
  float sum_of[2], dot_of[2];  // of the lane's rows, if they are queries
  if constexpr (!kOwnsKeys) {
    sum_dots<Tile>(m.log_sum_exp, m.dots, g, of.token + work.own, work.own_rows, work.own_head,
                   dots + work.own_head * dots_stride, true);
    __syncwarp();  // suffices, because each warp has its own rows
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum_of[h] = -kLog2E * m.log_sum_exp[warp_row + group + 8 * h];
      dot_of[h] = m.dots[warp_row + group + 8 * h];
    }
  }
  float first_sum[kDim / 2] = {};                   // dq or dk
  float second_sum[kOwnsKeys ? kDim / 2 : 1] = {};  // dv
  barrier_wait(&m.own_full, 0);

  for (int i = 0; i < work.count; ++i, work.advance(passing), from.advance()) {
    const int s = from.stage;
    typename Tile::Stage& stage = m.stages[s];
    wait_copies<kStages - 2>();
    barrier_wait(&m.full[s], from.parity);
    __syncthreads();  // also: no thread still reads the stage that is fetched into next
    const int rows = (kOwnsKeys ? of.queries : of.keys) - passing.first;
    if (rows < kOther) clear_rows<Tile>(stage, rows);

    float weight[kOther / 2], dscore[kOther / 2];
    wgmma_fence();
    multiply_rows<Tile>(weight, m.first, stage.first);
    wgmma_commit();
    multiply_rows<Tile>(dscore, m.second, stage.second);
    wgmma_commit();
    if (i + kStages - 1 < work.count)
      fetch();
    else
      end_copies();

    const int first_query = kOwnsKeys ? passing.first : work.own;
    const int first_key = kOwnsKeys ? work.own : passing.first;
    // The distance of the first key to the first query.
    const int nearest = first_key - (of.position() + first_query);
    // Own keys beyond the sequence need no mask: their results are not stored.
    const int keys = of.keys - first_key;
    const bool hides = (!kOwnsKeys && keys < kKeys) || nearest - (kQueries - 1) < -shape.left ||
                       nearest + kKeys - 1 > shape.right;
    const auto weigh = [&](auto hiding) {
      const unsigned wide = static_cast<unsigned>(shape.left) + shape.right;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float2 sums;
        if constexpr (kOwnsKeys) {
          sums = *reinterpret_cast<const float2*>(&m.passing_log_sum_exp[s][n * 8 + pair]);
          sums = {-kLog2E * sums.x, -kLog2E * sums.y};
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& w = weight[4 * n + j];
          const float sum = kOwnsKeys ? (j % 2 ? sums.y : sums.x) : sum_of[j / 2];
          w = fast_exp2(fmaf(w, scale, sum));
          if constexpr (decltype(hiding)::value) {
            const int mine = warp_row + group + j / 2 * 8, theirs = n * 8 + pair + j % 2;
            const int query = kOwnsKeys ? theirs : mine, key = kOwnsKeys ? mine : theirs;
            const unsigned distance = static_cast<unsigned>(nearest + key - query + shape.left);
            w = key < keys && distance <= wide ? w : 0.0f;
          }
        }
      }
    };
    const auto differentiate_scores = [&](auto drops) {
      constexpr bool kDrops = decltype(drops)::value;
      uint2 kept[2];  // the mask of the lane's rows, if they are queries
      if constexpr (kDrops && !kOwnsKeys) {
        for (int h = 0; h < 2; ++h) kept[h] = kept_keys(m.mask[s], warp_row + group + 8 * h);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float2 products;
        // The mask of the lane's rows, if they are keys, for two queries: bits 0 and 8 of each.
        uint32_t kept_pair[2];
        if constexpr (kOwnsKeys) {
          products = *reinterpret_cast<const float2*>(&m.passing_dots[s][n * 8 + pair]);
          if constexpr (kDrops) {
            for (int i = 0; i < 2; ++i) {
              const uint8_t* groups = m.mask[s] + (n * 8 + pair + i) * kGroups + warp_row / 8;
              kept_pair[i] = *reinterpret_cast<const uint16_t*>(groups) >> group;
            }
          }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& w = weight[4 * n + j];
          float& d = dscore[4 * n + j];
          const float dot = kOwnsKeys ? (j % 2 ? products.y : products.x) : dot_of[j / 2];
          if constexpr (kDrops) {
            const bool keep =
                kOwnsKeys ? kept_pair[j % 2] >> j / 2 * 8 & 1 : keeps(kept[j / 2], n, j % 2);
            const float some = keep ? w * dropout.factor : 0.0f;
            d = some * d - w * dot;
            if constexpr (kOwnsKeys) w = some;
          } else {
            d = w * (d - dot);
          }
        }
      }
    };
    wgmma_wait<1>();
    pin(weight);
    if (hides) {
      weigh(std::true_type());
    } else {
      weigh(std::false_type());
    }
    if (dropout.any) {
      wgmma_wait<0>();
      pin(dscore);
      differentiate_scores(std::true_type());
    } else {
      wgmma_wait<0>();
      pin(dscore);
      differentiate_scores(std::false_type());
    }
    uint32_t a[kOther / 16][4], b[kOther / 16][4];
    pack_factors<T>(a, dscore);
    pin<kOther / 16>(a);
    pin(first_sum);
    if constexpr (kOwnsKeys) {
      pack_factors<T>(b, weight);
      pin<kOther / 16>(b);
      pin(second_sum);
    }
    wgmma_fence();
    add_rows<Tile>(first_sum, a, stage.first);
    if constexpr (kOwnsKeys) add_rows<Tile>(second_sum, b, stage.second);
    wgmma_commit();
    wgmma_wait<0>();
    pin(first_sum);
    pin<kOther / 16>(a);
    if constexpr (kOwnsKeys) {
      pin(second_sum);
      pin<kOther / 16>(b);
    }
  }

  const int64_t row = (kOwnsKeys ? of.key : of.token) + work.own + warp_row;
  const int rows = work.own_rows - warp_row, column = work.own_head * kDim;
  const int64_t stride = kOwnsKeys ? g.dk_stride : g.dq_stride;
  const uint32_t line = warp_row * 128;
  write_rows<Tile::kDim>(first_sum, {shape.scale, shape.scale}, shared_address(m.first) + line,
                         (kOwnsKeys ? g.dk : g.dq) + row * stride + column, stride, rows);
  if constexpr (kOwnsKeys) {
    write_rows<Tile::kDim>(second_sum, {1.0f, 1.0f}, shared_address(m.second) + line,
                           g.dv + row * g.dv_stride + column, g.dv_stride, rows);
  }
}

}  // namespace fusewire::cuda::sm90
