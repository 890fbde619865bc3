// The backward pass of packed attention, accumulated in fp32 on CUDA cores. A block of 256 threads
// processes tiles of 32 queries and 32 keys, whose rows are in shared memory as floats.
#include <cmath>

#include "cuda/attention/attention_backward.h"
#include "cuda/attention/bias_gradient.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/column_totals.h"

namespace fusewire::cuda {
namespace {

constexpr int kThreads = 256, kTile = 32;
constexpr int kRowLanes = kThreads / kTile;          // threads that share a row of a result
constexpr int kRowsEach = kTile * kTile / kThreads;  // scores of a thread: queries, of one key
// Columns of a head that one chain of multiply-adds sums up. An error of a score is a relative
// error of its weight, and the gradients multiply weights by values that cancel each other out.
constexpr int kChain = 32;

template <int kDim>
struct Memory {
  static constexpr int kStride = kDim + 4;  // 32 rows are read at a time, from different banks
  float q[kTile * kStride], dout[kTile * kStride], k[kTile * kStride], v[kTile * kStride];
  float weights[kTile][kTile + 1], dscores[kTile][kTile + 1];  // [query][key]
  float log_sum_exp[kTile], dots[kTile];
};

__device__ __forceinline__ float4 at(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

__device__ __forceinline__ void add(float4& sum, float a, const float4& b) {
  sum.x = fmaf(a, b.x, sum.x);
  sum.y = fmaf(a, b.y, sum.y);
  sum.z = fmaf(a, b.z, sum.z);
  sum.w = fmaf(a, b.w, sum.w);
}

__device__ __forceinline__ float add_dot(float sum, const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Copies rows to shared memory as floats, padded with zeros to kTile x kDim.
template <int kDim, class T>
__device__ __forceinline__ void load_rows(float* to, const T* from, int64_t stride, int rows,
                                          int dim) {
  for (int i = threadIdx.x; i < kTile * kDim; i += kThreads) {
    const int row = i / kDim, column = i % kDim;
    const bool real = row < rows && column < dim;
    to[row * Memory<kDim>::kStride + column] = real ? to_float(from[row * stride + column]) : 0.0f;
  }
}

// Loads a tile of queries of a head, from query `first` on: q, dout and, for each row, log_sum_exp
// and the sum of dout * out.
template <int kDim, class T>
__device__ void load_queries(Memory<kDim>& m, const AttentionBackwardShape<T>& g,
                             const AttendedSequence& of, int head, int first) {
  const AttentionShape& shape = g.forward;
  const int rows = of.queries - first, dim = shape.head_dim, column = head * dim;
  const int64_t token = of.token + first;
  const T* dout = g.dout + token * g.dout_stride + column;
  const T* out = g.out + token * shape.out_stride + column;
  load_rows<kDim>(m.q, g.q + token * shape.q_stride + column, shape.q_stride, rows, dim);
  load_rows<kDim>(m.dout, dout, g.dout_stride, rows, dim);
  const int row = threadIdx.x / kRowLanes, lane = threadIdx.x % kRowLanes;
  float dot = 0.0f;
  for (int d = lane; row < rows && d < dim; d += kRowLanes) {
    dot = fmaf(to_float(dout[row * g.dout_stride + d]), to_float(out[row * shape.out_stride + d]),
               dot);
  }
  dot = reduce_lanes<kRowLanes>(dot, Sum());
  if (lane != 0) return;
  m.dots[row] = dot;
  m.log_sum_exp[row] = row < rows ? shape.log_sum_exp[head * shape.log_sum_exp_stride + token + row]
                                  : INFINITY;  // makes weights of rows beyond the sequence 0
}

template <int kDim, class T>
__device__ void load_keys(Memory<kDim>& m, const AttentionBackwardShape<T>& g,
                          const AttendedSequence& of, int kv_head, int first) {
  const AttentionShape& shape = g.forward;
  const int rows = of.keys - first, dim = shape.head_dim, column = kv_head * dim;
  const int64_t key = of.key + first;
  load_rows<kDim>(m.k, g.k + key * shape.k_stride + column, shape.k_stride, rows, dim);
  load_rows<kDim>(m.v, g.v + key * shape.v_stride + column, shape.v_stride, rows, dim);
}

// Computes the weights of a tile of queries and a tile of keys and the gradients of their scores;
// also those with respect to the biases, in `bias`, unless it is null.
template <int kDim, class T>
__device__ __forceinline__ void differentiate_tile(Memory<kDim>& m,
                                                   const AttentionBackwardShape<T>& g,
                                                   const AttendedSequence& of, int head,
                                                   int first_query, int first_key,
                                                   BiasTile<kTile>* bias) {
  constexpr int kStride = Memory<kDim>::kStride;
  const AttentionShape& shape = g.forward;
  const int key = threadIdx.x % kTile, row = threadIdx.x / kTile * kRowsEach;
  float products[kRowsEach] = {}, dweights[kRowsEach] = {};
  for (int begin = 0; begin < kDim; begin += kChain) {
    float product[kRowsEach] = {}, dweight[kRowsEach] = {};
    for (int d = begin; d < begin + kChain; d += 4) {
      const float4 k = at(m.k + key * kStride + d), v = at(m.v + key * kStride + d);
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        product[i] = add_dot(product[i], at(m.q + (row + i) * kStride + d), k);
        dweight[i] = add_dot(dweight[i], at(m.dout + (row + i) * kStride + d), v);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      products[i] += product[i];
      dweights[i] += dweight[i];
    }
  }
  const bool real = first_key + key < of.keys;
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const int query = first_query + row + i;
    const int distance = first_key + key - (of.position() + query);
    float factor = 1.0f;
    if (shape.dropout.any) {
      factor = shape.dropout.factor_at((of.token + query) * shape.heads + head, first_key + key);
    }
    const WeightGradient gradient =
        differentiate(shape, biases_of(shape, head), distance, real, products[i], dweights[i],
                      factor, m.log_sum_exp[row + i], m.dots[row + i], tanhf);
    m.weights[row + i][key] = gradient.kept;
    m.dscores[row + i][key] = gradient.dscore;
    if (bias) bias->gradients[row + i][key] = gradient.dbias;
  }
}

// A thread's part of a row of a result: columns 4 * lane + 32 * c and the three after each.
template <int kDim>
using RowPart = float4[kDim / 32];

template <int kDim, class T>
__device__ __forceinline__ void store_part(const RowPart<kDim>& part, T* row, int dim,
                                           float scale) {
#pragma unroll
  for (int c = 0; c < kDim / 32; ++c) {
    const int column = threadIdx.x % kRowLanes * 4 + 32 * c;
    const float numbers[4] = {part[c].x, part[c].y, part[c].z, part[c].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (column + e < dim) row[column + e] = from_float<T>(numbers[e] * scale);
    }
  }
}

// blockIdx.x is tile * heads + head. With kBias, each block has its own row of bias_sums[blocks,
// width].
template <class T, int kDim, bool kBias>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(AttentionBackwardShape<T> g, float* bias_sums) {
  extern __shared__ __align__(16) char shared[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(shared);
  const AttentionShape& shape = g.forward;
  let_next_start();
  const int head = blockIdx.x % shape.heads;
  const QueryTile tile =
      find_query_tile<kTile>(shape.offsets, shape.sequences, blockIdx.x / shape.heads);
  wait_for_inputs();
  const int most = static_cast<int>(shape.bias_span) - 1, width = 2 * most + 1;
  auto* bias = kBias ? reinterpret_cast<BiasTile<kTile>*>(shared + sizeof(m)) : nullptr;
  if constexpr (kBias) {
    bias_sums += static_cast<int64_t>(blockIdx.x) * width;
    clear_bias_sums<kThreads>(bias_sums, width);
  }
  if (tile.first_query >= tile.length) return;
  const AttendedSequence of = sequence_of_queries(tile, shape);
  load_queries<kDim>(m, g, of, head, tile.first_query);
  const int row = threadIdx.x / kRowLanes, column = threadIdx.x % kRowLanes * 4;
  const int last = min(tile.first_query + kTile, of.queries);
  const SeenRange seen = keys_seen<kTile>(of, shape, tile.first_query, last);
  RowPart<kDim> dq = {};
  for (int key = seen.begin; key < seen.end; key += kTile) {
    load_keys<kDim>(m, g, of, head / shape.group, key);
    __syncthreads();
    differentiate_tile<kDim>(m, g, of, head, tile.first_query, key, bias);
    __syncthreads();
    if constexpr (kBias) {
      const int distance = key - (of.position() + tile.first_query);
      add_bias_tile<kTile, kThreads>(bias_sums, *bias, distance, most);
    }
    for (int j = 0; j < kTile; ++j) {
      const float* k = m.k + j * Memory<kDim>::kStride + column;
#pragma unroll
      for (int c = 0; c < kDim / 32; ++c) add(dq[c], m.dscores[row][j], at(k + 32 * c));
    }
    __syncthreads();
  }
  const int query = tile.first_query + row;
  if (query >= of.queries) return;
  store_part<kDim>(dq, g.dq + (of.token + query) * g.dq_stride + head * shape.head_dim,
                   shape.head_dim, shape.scale);
}

// blockIdx.x is tile * kv_heads + kv_head.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) keys_kernel(AttentionBackwardShape<T> g) {
  extern __shared__ __align__(16) char shared[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(shared);
  const AttentionShape& shape = g.forward;
  let_next_start();
  const int kv_heads = g.kv_heads(), kv_head = blockIdx.x % kv_heads;
  const QueryTile tile =
      find_query_tile<kTile>(shape.key_offsets ? shape.key_offsets : shape.offsets, shape.sequences,
                             blockIdx.x / kv_heads);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;
  const AttendedSequence of = sequence_of_keys(tile, shape);
  load_keys<kDim>(m, g, of, kv_head, tile.first_query);
  const int row = threadIdx.x / kRowLanes, column = threadIdx.x % kRowLanes * 4;
  const int last = min(tile.first_query + kTile, of.keys);
  const SeenRange seeing = queries_seeing<kTile>(of, shape, tile.first_query, last);
  RowPart<kDim> dk = {}, dv = {};
  for (int head = kv_head * shape.group; head < (kv_head + 1) * shape.group; ++head) {
    for (int query = seeing.begin; query < seeing.end; query += kTile) {
      load_queries<kDim>(m, g, of, head, query);
      __syncthreads();
      differentiate_tile<kDim>(m, g, of, head, query, tile.first_query, nullptr);
      __syncthreads();
      for (int i = 0; i < kTile; ++i) {
        const float* q = m.q + i * Memory<kDim>::kStride + column;
        const float* dout = m.dout + i * Memory<kDim>::kStride + column;
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
          add(dk[c], m.dscores[i][row], at(q + 32 * c));
          add(dv[c], m.weights[i][row], at(dout + 32 * c));
        }
      }
      __syncthreads();
    }
  }
  const int key = tile.first_query + row;
  if (key >= of.keys) return;
  const int at_head = kv_head * shape.head_dim;
  store_part<kDim>(dk, g.dk + (of.key + key) * g.dk_stride + at_head, shape.head_dim, shape.scale);
  store_part<kDim>(dv, g.dv + (of.key + key) * g.dv_stride + at_head, shape.head_dim, 1.0f);
}

template <class T, int kDim, bool kBias>
void launch_queries(const AttentionBackwardShape<T>& shape, dim3 blocks, float* bias_sums,
                    const Stream& stream) {
  constexpr auto kKernel = queries_kernel<T, kDim, kBias>;
  constexpr size_t kBytes = sizeof(Memory<kDim>) + (kBias ? sizeof(BiasTile<kTile>) : 0);
  allow_shared_memory<kKernel>(kBytes, stream);
  launch(kKernel, blocks, dim3(kThreads), kBytes, stream, shape, bias_sums);
}

template <class T, int kDim>
void launch_both(const AttentionBackwardArguments& g, const Stream& stream) {
  const AttentionArguments& a = g.forward;
  constexpr size_t kBytes = sizeof(Memory<kDim>);
  const AttentionBackwardShape<T> shape(g);
  const auto blocks = [](const SequenceBatch& batch, int64_t heads) {
    return dim3(static_cast<unsigned>(batch.query_tiles(kTile) * heads));
  };
  const dim3 of_queries = blocks(*a.queries, a.heads);
  if (g.dbias) {
    const int64_t width = a.heads * a.bias_width(), count = of_queries.x / a.heads;
    auto* sums = static_cast<float*>(
        kept_memory(stream, sizeof(float) * static_cast<size_t>(count * width)));
    launch_queries<T, kDim, true>(shape, of_queries, sums, stream);
    add_parts({sums, count, width, {g.dbias}, width, false}, stream);
  } else {
    launch_queries<T, kDim, false>(shape, of_queries, nullptr, stream);
  }
  allow_shared_memory<keys_kernel<T, kDim>>(kBytes, stream);
  launch(keys_kernel<T, kDim>, blocks(*a.keys, a.kv_heads), dim3(kThreads), kBytes, stream, shape);
}

}  // namespace

template <class T>
void plain_attention_backward(const AttentionBackwardArguments& g, const Stream& stream) {
  const int64_t dim = g.forward.head_dim;
  if (dim <= 32) return launch_both<T, 32>(g, stream);
  if (dim <= 64) return launch_both<T, 64>(g, stream);
  if (dim <= 128) return launch_both<T, 128>(g, stream);
  static_assert(kMaxHeadDim == 256);
  launch_both<T, 256>(g, stream);
}

#define INSTANTIATE(T) \
  template void plain_attention_backward<T>(const AttentionBackwardArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
