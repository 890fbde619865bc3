// The backward pass of packed attention on tensor cores, after FlashAttention-2 (Dao 2023,
// algorithm 2), by mma.sync. Any head_dim up to 128 is padded with zeros.
//
// One template is both kernels. The block owns a tile of queries or of keys, 16 rows per warp, and
// loops over tiles of the other side. It computes scores as own . other^T, which is keys by queries
// where the block owns keys. Weights and gradients of scores, the results of the first two
// products, are therefore already in the warp's registers as operands of the products that follow.
#include "cuda/attention/attention_dots.h"
#include "cuda/attention/flash_backward_step.h"
#include "cuda/attention/flash_backward_tile.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// blockIdx.x is tile * heads + head, in tiles and heads of what the block owns. dots [heads,
// dots_stride] holds the sums of dout * out of each query, which the kernel of the queries writes.
template <class Tile, bool kOwnsKeys>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    flash_backward_kernel(AttentionBackwardShape<typename Tile::T> g, float* dots,
                          int64_t dots_stride, bool vectors_in, bool vectors_out) {
  using T = typename Tile::T;
  constexpr int kOther = Tile::kOther;
  constexpr int kQueries = kOwnsKeys ? kOther : Tile::kOwn;
  constexpr int kKeys = kOwnsKeys ? Tile::kOwn : kOther, kGroups = kKeys / kDropoutGroup;
  extern __shared__ __align__(128) char shared[];
  auto& m = *reinterpret_cast<typename Tile::Memory*>(shared);
  const AttentionShape& shape = g.forward;
  let_next_start();
  using Work = TiledWork<kOwnsKeys, Tile::kOwn, kOther>;
  const int heads = kOwnsKeys ? g.kv_heads() : shape.heads;
  const QueryTile tile = Work::find_tile(shape, blockIdx.x / heads);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;
  const Work work(tile, shape, blockIdx.x % heads);
  const AttendedSequence& of = work.of;
  const int own = work.own, own_rows = work.own_rows, own_head = work.own_head;
  const int dim = shape.head_dim, kv_head = work.kv_head, count = work.count;

  Passing passing = work.first_passing(), coming = passing;
  const auto fetch = [&](int i) {
    typename Tile::Stage& stage = m.stages[i % 2];
    const Passing p = coming;
    if constexpr (kOwnsKeys) {
      const int64_t token = of.token + p.first;
      const int rows = of.queries - p.first, column = p.head * dim;
      Tile::copy_rows(stage.first, g.q + token * shape.q_stride + column, shape.q_stride, rows,
                      kOther, dim, vectors_in);
      Tile::copy_rows(stage.second, g.dout + token * g.dout_stride + column, g.dout_stride, rows,
                      kOther, dim, vectors_in);
      // Rows beyond the sequence can take zeros, because q and dout are zero there.
      const float* sums = shape.log_sum_exp + p.head * shape.log_sum_exp_stride;
      const float* products = dots + p.head * dots_stride;
      const int row = threadIdx.x % kOther;
      const bool wanted = row < rows;
      if (threadIdx.x < kOther) {
        copy_4(shared_address(stage.log_sum_exp + row), wanted ? sums + token + row : sums, wanted);
      } else if (threadIdx.x < 2 * kOther) {
        copy_4(shared_address(stage.dots + row), wanted ? products + token + row : products,
               wanted);
      }
    } else {
      const int64_t key = of.key + p.first;
      const int rows = of.keys - p.first, column = kv_head * dim;
      Tile::copy_rows(stage.first, g.k + key * shape.k_stride + column, shape.k_stride, rows,
                      kOther, dim, vectors_in);
      Tile::copy_rows(stage.second, g.v + key * shape.v_stride + column, shape.v_stride, rows,
                      kOther, dim, vectors_in);
    }
    end_copies();
    if (shape.dropout.any) {
      draw_mask<kQueries, kGroups, Tile::kThreads>(stage.mask, shape.dropout, shape.heads,
                                                   of.token + (kOwnsKeys ? p.first : own), p.head,
                                                   kOwnsKeys ? own : p.first);
    }
  };

  {
    const int64_t row = (kOwnsKeys ? of.key : of.token) + own;
    const int column = own_head * dim;
    const int64_t first_stride = kOwnsKeys ? shape.k_stride : shape.q_stride;
    const int64_t second_stride = kOwnsKeys ? shape.v_stride : g.dout_stride;
    Tile::copy_rows(m.first, (kOwnsKeys ? g.k : g.q) + row * first_stride + column, first_stride,
                    own_rows, Tile::kOwn, dim, vectors_in);
    Tile::copy_rows(m.second, (kOwnsKeys ? g.v : g.dout) + row * second_stride + column,
                    second_stride, own_rows, Tile::kOwn, dim, vectors_in);
  }
  if (count > 0) fetch(0);
  if constexpr (!kOwnsKeys) {
    sum_dots<Tile>(m.log_sum_exp, m.dots, g, of.token + own, own_rows, own_head,
                   dots + own_head * dots_stride, vectors_in);
  }

  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Tile::kWarpRows;
  const bool active = warp_row < own_rows;
  const uint32_t own_lane = shared_address(m.first) + Tile::offset(warp_row + lane % 16, lane / 16);
  float first_sum[Tile::kChunks][4] = {};                   // dq or dk
  float second_sum[kOwnsKeys ? Tile::kChunks : 1][4] = {};  // dv

  const auto compute = [&](int i) {
    const typename Tile::Stage& stage = m.stages[i % 2];
    const int first_query = kOwnsKeys ? passing.first : own + warp_row;
    const int first_key = kOwnsKeys ? own + warp_row : passing.first;
    BackwardStep step;
    step.own_first = own_lane;
    step.own_second = own_lane + Tile::kOwnBytes;
    step.first = shared_address(stage.first);
    step.second = shared_address(stage.second);
    step.log_sum_exp = kOwnsKeys ? stage.log_sum_exp : m.log_sum_exp + warp_row;
    step.dots = kOwnsKeys ? stage.dots : m.dots + warp_row;
    step.mask = stage.mask + (kOwnsKeys ? warp_row / kDropoutGroup : warp_row * kGroups);
    step.groups = kGroups;
    step.nearest = first_key - (of.position() + first_query);
    step.keys = of.keys - first_key;
    add_step<Tile, kOwnsKeys>(first_sum, second_sum, shape, step, passing.head);
  };

  for (int i = 0; i < count; ++i) {
    passing = coming;
    if (i + 1 < count) {
      work.advance(coming);
      fetch(i + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (active) compute(i);
    __syncthreads();
  }
  if (count == 0) wait_copies<0>();
  if (!active) return;

  const int64_t row = (kOwnsKeys ? of.key : of.token) + own + warp_row;
  const int rows = own_rows - warp_row, column = own_head * dim;
  const int64_t stride = kOwnsKeys ? g.dk_stride : g.dq_stride;
  const float scale[2] = {shape.scale, shape.scale}, one[2] = {1.0f, 1.0f};
  store_rows<Tile>(first_sum, (kOwnsKeys ? g.dk : g.dq) + row * stride + column, stride, rows, dim,
                   scale, vectors_out);
  if constexpr (kOwnsKeys) {
    store_rows<Tile>(second_sum, g.dv + row * g.dv_stride + column, g.dv_stride, rows, dim, one,
                     vectors_out);
  }
}

// Launches both kernels, each with its own tile: the kernel of the keys needs more registers.
template <class QueriesTile, class KeysTile>
void launch_both(const AttentionBackwardArguments& g, const Stream& stream) {
  using T = typename QueriesTile::T;
  const AttentionArguments& a = g.forward;
  const bool whole = a.head_dim % Vector<T>::kSize == 0;
  const bool vectors_in = attention_vectors_fit<T>(a) && vectors_fit<T>(g.dout.data, g.dout.stride);
  const bool vectors_out = whole && vectors_fit<T>(g.dq, g.dq_stride) &&
                           vectors_fit<T>(g.dk, g.dk_stride) && vectors_fit<T>(g.dv, g.dv_stride);
  const int64_t tokens = a.queries->tokens();
  float* const dots = attention_dots(a.heads * tokens, stream);
  const AttentionBackwardShape<T> shape(g);
  const auto launch_one = [&](auto owns_keys, auto tile, const SequenceBatch& owned,
                              int64_t heads) {
    using Tile = decltype(tile);
    constexpr auto kKernel = flash_backward_kernel<Tile, decltype(owns_keys)::value>;
    constexpr size_t kBytes = sizeof(typename Tile::Memory);
    allow_shared_memory<kKernel>(kBytes, stream);
    launch(kKernel, dim3(static_cast<unsigned>(owned.query_tiles(Tile::kOwn) * heads)),
           dim3(Tile::kThreads), kBytes, stream, shape, dots, tokens, vectors_in, vectors_out);
  };
  launch_one(std::false_type(), QueriesTile(), *a.queries, a.heads);
  launch_one(std::true_type(), KeysTile(), *a.keys, a.kv_heads);
}

}  // namespace

bool flash_attention_backward_fits(const AttentionBackwardArguments& g) {
  return g.forward.head_dim <= 128 && !g.dbias;
}

template <class T>
void flash_attention_backward(const AttentionBackwardArguments& g, const Stream& stream) {
  const int64_t dim = g.forward.head_dim;
  if (dim <= 32) return launch_both<BackwardTile<T, 32, 64>, BackwardTile<T, 32, 64>>(g, stream);
  if (dim <= 64) return launch_both<BackwardTile<T, 64, 64>, BackwardTile<T, 64, 32>>(g, stream);
  if (dim <= 96) return launch_both<BackwardTile<T, 96, 32>, BackwardTile<T, 96, 32>>(g, stream);
  launch_both<BackwardTile<T, 128, 32>, BackwardTile<T, 128, 32>>(g, stream);
}

template void flash_attention_backward<__half>(const AttentionBackwardArguments&, const Stream&);
template void flash_attention_backward<__nv_bfloat16>(const AttentionBackwardArguments&,
                                                      const Stream&);

}  // namespace fusewire::cuda
