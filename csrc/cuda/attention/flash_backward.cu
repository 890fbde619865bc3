// The backward pass of packed attention on tensor cores, after FlashAttention-2 (Dao 2023,
// algorithm 2), by mma.sync. Any head_dim up to 128 is padded with zeros.
//
// One template is both kernels. The block owns a tile of queries or of keys, 16 rows per warp, and
// loops over tiles of the other side. It computes scores as own . other^T, which is keys by queries
// where the block owns keys. Weights and gradients of scores, the results of the first two
// products, are therefore already in the warp's registers as operands of the products that follow.
#include "cuda/attention/attention_dots.h"
#include "cuda/attention/flash_backward_tile.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// Computes sum += own . other^T for 16 own rows and kOther other rows in shared memory. `own` and
// `other` are the lane's addresses.
template <class Tile>
__device__ __forceinline__ void multiply_rows(float (&sum)[Tile::kOther / 8][4], uint32_t own,
                                              uint32_t other) {
#pragma unroll
  for (int chunk = 0; chunk < Tile::kChunks; chunk += 2) {
    const uint4 rows = load_matrices(Tile::at(own, 0, chunk));
    const uint32_t a[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
    for (int n = 0; n < Tile::kOther / 8; n += 2) {
      const uint4 b = load_matrices(Tile::at(other, n * 8, chunk));
      multiply_add<typename Tile::T>(sum[n], a, b.x, b.y);
      multiply_add<typename Tile::T>(sum[n + 1], a, b.z, b.w);
    }
  }
}

// Computes sum += factors . other for 16 rows of the block's own and kDim columns.
template <class Tile>
__device__ __forceinline__ void add_rows(float (&sum)[Tile::kChunks][4],
                                         const float (&factors)[Tile::kOther / 8][4],
                                         uint32_t other) {
  using T = typename Tile::T;
#pragma unroll
  for (int n = 0; n < Tile::kOther / 8; n += 2) {
    const uint32_t a[4] = {pack<T>(factors[n][0], factors[n][1]),
                           pack<T>(factors[n][2], factors[n][3]),
                           pack<T>(factors[n + 1][0], factors[n + 1][1]),
                           pack<T>(factors[n + 1][2], factors[n + 1][3])};
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += 2) {
      const uint4 b = load_transposed(Tile::at(other, n * 8, chunk));
      multiply_add<T>(sum[chunk], a, b.x, b.y);
      multiply_add<T>(sum[chunk + 1], a, b.z, b.w);
    }
  }
}

// Stores the warp's 16 rows times `scale`, rounded to T. Only the first `rows` rows exist in
// memory.
template <class Tile>
__device__ __forceinline__ void store_rows(const float (&sum)[Tile::kChunks][4],
                                           typename Tile::T* to, int64_t stride, int rows,
                                           int head_dim, float scale, bool vectors) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + g;
#pragma unroll
    for (int c = 0; c < Tile::kChunks; c += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = sum[c + i] + 2 * half;
        w[i] = pack<typename Tile::T>(pair[0] * scale, pair[1] * scale);
      }
      transpose_quad(w);
      store_chunk(to + row * stride, (c + t) * 8, row < rows ? head_dim : 0, vectors,
                  {w[0], w[1], w[2], w[3]});
    }
  }
}

// blockIdx.x is tile * heads + head, in tiles and heads of what the block owns. dots [heads,
// dots_stride] holds the sums of dout * out of each query, which the kernel of the queries writes.
template <class Tile, bool kOwnsKeys>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    flash_backward_kernel(AttentionBackwardShape<typename Tile::T> g, float* dots,
                          int64_t dots_stride, bool vectors_in, bool vectors_out) {
  using T = typename Tile::T;
  constexpr int kOther = Tile::kOther, kN = kOther / 8;
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
      Tile::template copy_rows<kOther>(stage.first, g.q + token * shape.q_stride + column,
                                       shape.q_stride, rows, dim, vectors_in);
      Tile::template copy_rows<kOther>(stage.second, g.dout + token * g.dout_stride + column,
                                       g.dout_stride, rows, dim, vectors_in);
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
      Tile::template copy_rows<kOther>(stage.first, g.k + key * shape.k_stride + column,
                                       shape.k_stride, rows, dim, vectors_in);
      Tile::template copy_rows<kOther>(stage.second, g.v + key * shape.v_stride + column,
                                       shape.v_stride, rows, dim, vectors_in);
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
    Tile::template copy_rows<Tile::kOwn>(m.first,
                                         (kOwnsKeys ? g.k : g.q) + row * first_stride + column,
                                         first_stride, own_rows, dim, vectors_in);
    Tile::template copy_rows<Tile::kOwn>(m.second,
                                         (kOwnsKeys ? g.v : g.dout) + row * second_stride + column,
                                         second_stride, own_rows, dim, vectors_in);
  }
  if (count > 0) fetch(0);
  if constexpr (!kOwnsKeys) {
    sum_dots<Tile>(m.log_sum_exp, m.dots, g, of.token + own, own_rows, own_head,
                   dots + own_head * dots_stride, vectors_in);
  }

  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
  const int warp_row = threadIdx.x / 32 * Tile::kWarpRows;
  const bool active = warp_row < own_rows;
  const uint32_t own_lane = shared_address(m.first) + Tile::offset(warp_row + lane % 16, lane / 16);
  const uint32_t row_lane = Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t transposed_lane = Tile::offset(lane % 16, lane / 16);
  const bool direct = !shape.bias && shape.soft_cap <= 0.0f;
  const float scale = shape.scale * kLog2E;
  float first_sum[Tile::kChunks][4] = {};                   // dq or dk
  float second_sum[kOwnsKeys ? Tile::kChunks : 1][4] = {};  // dv

  const auto compute = [&](int i) {
    const typename Tile::Stage& stage = m.stages[i % 2];
    const Passing p = passing;
    const uint32_t first = shared_address(stage.first), second = shared_address(stage.second);
    float weight[kN][4] = {}, dscore[kN][4] = {};
    multiply_rows<Tile>(weight, own_lane, first + row_lane);
    multiply_rows<Tile>(dscore, own_lane + Tile::kOwnBytes, second + row_lane);

    // Calls body(weight, dscore, query, key, log_sum_exp, dot, factor) for each of the lane's
    // scores, with query and key as indices in the tiles.
    const auto for_each = [&](auto drops, auto body) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int mine = warp_row + group + j / 2 * 8, theirs = n * 8 + pair + j % 2;
          const int query = kOwnsKeys ? theirs : mine, key = kOwnsKeys ? mine : theirs;
          const float sum = kOwnsKeys ? stage.log_sum_exp[query] : m.log_sum_exp[query];
          const float dot = kOwnsKeys ? stage.dots[query] : m.dots[query];
          float factor = 1.0f;
          if constexpr (decltype(drops)::value) {
            const uint32_t kept = stage.mask[query * kGroups + key / kDropoutGroup];
            factor = kept >> key % kDropoutGroup & 1 ? shape.dropout.factor : 0.0f;
          }
          body(weight[n][j], dscore[n][j], query, key, sum, dot, factor);
        }
      }
    };
    const int first_query = kOwnsKeys ? p.first : own, first_key = kOwnsKeys ? own : p.first;
    // The distance of the first key to the first query.
    const int nearest = first_key - (of.position() + first_query);
    // Own keys beyond the sequence need no mask: their results are not stored.
    const int keys = of.keys - first_key;
    const bool hides = (!kOwnsKeys && keys < kKeys) || nearest - (kQueries - 1) < -shape.left ||
                       nearest + kKeys - 1 > shape.right;
    const auto plainly = [&](auto drops, auto hiding) {
      const unsigned wide = static_cast<unsigned>(shape.left) + shape.right;
      for_each(drops, [&](float& product, float& dweight, int query, int key, float sum, float dot,
                          float factor) {
        float w = fast_exp2(fmaf(product, scale, -sum * kLog2E));
        if constexpr (decltype(hiding)::value) {
          const unsigned distance = static_cast<unsigned>(nearest + key - query + shape.left);
          w = key < keys && distance <= wide ? w : 0.0f;
        }
        product = w * factor;
        dweight = product * dweight - w * dot;
      });
    };
    const auto fully = [&](auto drops) {
      const float* bias = biases_of(shape, p.head);
      for_each(drops, [&](float& product, float& dweight, int query, int key, float sum, float dot,
                          float factor) {
        const WeightGradient gradient = differentiate(
            shape, bias, nearest + key - query, key < keys, product, dweight, factor, sum, dot,
            [](float x) {  // 1 - 2 / (e^2x + 1)
              return 1.0f - __fdividef(2.0f, fast_exp2(x * (2.0f * kLog2E)) + 1.0f);
            });
        product = gradient.kept;
        dweight = gradient.dscore;
      });
    };
    const auto choose = [&](auto drops) {
      if (!direct) {
        fully(drops);
      } else if (hides) {
        plainly(drops, std::true_type());
      } else {
        plainly(drops, std::false_type());
      }
    };
    shape.dropout.any ? choose(std::true_type()) : choose(std::false_type());
    add_rows<Tile>(first_sum, dscore, first + transposed_lane);
    if constexpr (kOwnsKeys) add_rows<Tile>(second_sum, weight, second + transposed_lane);
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
  store_rows<Tile>(first_sum, (kOwnsKeys ? g.dk : g.dq) + row * stride + column, stride, rows, dim,
                   shape.scale, vectors_out);
  if constexpr (kOwnsKeys) {
    store_rows<Tile>(second_sum, g.dv + row * g.dv_stride + column, g.dv_stride, rows, dim, 1.0f,
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
