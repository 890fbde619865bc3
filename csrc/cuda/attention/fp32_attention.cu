// Packed attention in fp32 on CUDA cores. A block computes 64 queries of one head, with tiles of
// keys and values in shared memory and the online softmax of flash_kernel.h.
//
// Thread (x, y) of 16 x 8 owns 8 rows: every 16th column of their scores and kDim / 16 columns of
// their output. The 16 threads of a row are half a warp, so weights pass from the softmax to the
// product with the values within the warp that computed them.
#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/query_tile.h"
#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/mma.h"

namespace fusewire::cuda {
namespace {

constexpr float kLog2e = 1.44269504f;  // scores are kept in units of log2, exp is then 2^x
constexpr int kThreads = 128, kRows = 64, kThreadRows = 8;

template <int kDim>
struct Layout {
  static constexpr int kKeys = kDim <= 64 ? 64 : 32;
  static constexpr int kThreadKeys = kKeys / 16, kThreadColumns = kDim / 16;
  static constexpr int kVector = kThreadColumns < 4 ? kThreadColumns : 4;
  static constexpr int kStride = kDim + 4;     // of queries and keys: rows start in other banks
  static constexpr int kWeights = kKeys + 16;  // of weights, likewise
  static constexpr int kKey = kRows * kStride, kValue = kKey + kKeys * kStride;
  static constexpr int kWeight = kValue + kKeys * kDim;
  static constexpr size_t kBytes = (kWeight + kRows * kWeights) * sizeof(float);
  static constexpr int kBlocks = kBytes * 3 < 220 * 1024 ? 3 : kBytes * 2 < 220 * 1024 ? 2 : 1;
};

// Starts asynchronous copies of `rows` rows of `width` floats to shared memory, padded with zeros
// to kRowsWanted x kDim.
template <int kDim, int kRowsWanted>
__device__ __forceinline__ void copy_rows(float* to, int to_stride, const float* from,
                                          int64_t stride, int rows, int width, bool vectors) {
  const uint32_t base = shared_address(to);
  if (vectors) {
    for (int i = threadIdx.x; i < kRowsWanted * kDim / 4; i += kThreads) {
      const int row = i / (kDim / 4), column = i % (kDim / 4) * 4;
      const bool wanted = row < rows && column < width;
      copy_16(base + (row * to_stride + column) * 4, wanted ? from + row * stride + column : from,
              wanted);
    }
  } else {
    for (int i = threadIdx.x; i < kRowsWanted * kDim; i += kThreads) {
      const int row = i / kDim, column = i % kDim;
      const bool wanted = row < rows && column < width;
      copy_4(base + (row * to_stride + column) * 4, wanted ? from + row * stride + column : from,
             wanted);
    }
  }
}

__device__ __forceinline__ float4 at(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

// Computes sum[i][j] += query row 2 i . key row 16 j over columns [begin, end); rows are counted
// from `query` and `key`.
template <int kDim>
__device__ __forceinline__ void multiply_columns(
    float (&sum)[kThreadRows][Layout<kDim>::kThreadKeys], const float* query, const float* key,
    int begin, int end) {
  using L = Layout<kDim>;
  for (int d = begin; d < end; d += 4) {
    float4 k[L::kThreadKeys];
#pragma unroll
    for (int j = 0; j < L::kThreadKeys; ++j) k[j] = at(key + j * 16 * L::kStride + d);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const float4 q = at(query + i * 2 * L::kStride + d);
#pragma unroll
      for (int j = 0; j < L::kThreadKeys; ++j) {
        sum[i][j] = fmaf(q.x, k[j].x, sum[i][j]);
        sum[i][j] = fmaf(q.y, k[j].y, sum[i][j]);
        sum[i][j] = fmaf(q.z, k[j].z, sum[i][j]);
        sum[i][j] = fmaf(q.w, k[j].w, sum[i][j]);
      }
    }
  }
}

// Computes the scores. Wide heads are summed in parts of 32 columns, because one long chain of
// additions would lose precision.
template <int kDim>
__device__ __forceinline__ void multiply_keys(
    float (&score)[kThreadRows][Layout<kDim>::kThreadKeys], const float* query, const float* key,
    int width) {
  if constexpr (kDim <= 64) {
    multiply_columns<kDim>(score, query, key, 0, width);
  } else {
    for (int begin = 0; begin < width; begin += 32) {
      float part[kThreadRows][Layout<kDim>::kThreadKeys] = {};
      multiply_columns<kDim>(part, query, key, begin, min(begin + 32, width));
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < Layout<kDim>::kThreadKeys; ++j) score[i][j] += part[i][j];
      }
    }
  }
}

// Computes out += weights . values, four keys per step.
template <int kDim>
__device__ __forceinline__ void multiply_values(
    float (&out)[kThreadRows][Layout<kDim>::kThreadColumns], const float* weight,
    const float* value, int keys) {
  using L = Layout<kDim>;
  for (int key = 0; key < keys; key += 4) {
    float4 w[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) w[i] = at(weight + i * 2 * L::kWeights + key);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < L::kThreadColumns; c += L::kVector) {
        float v[L::kVector];
#pragma unroll
        for (int e = 0; e < L::kVector; ++e) v[e] = value[(key + k) * kDim + c * 16 + e];
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          const float x = k == 0 ? w[i].x : k == 1 ? w[i].y : k == 2 ? w[i].z : w[i].w;
#pragma unroll
          for (int e = 0; e < L::kVector; ++e) out[i][c + e] = fmaf(x, v[e], out[i][c + e]);
        }
      }
    }
  }
}

template <int kDim, bool kDrops>
__global__ void __launch_bounds__(kThreads, Layout<kDim>::kBlocks)
    attention_kernel(AttentionShape shape, float* out, const float* q, const float* k,
                     const float* v, bool vectors) {
  using L = Layout<kDim>;
  extern __shared__ __align__(128) float shared[];
  let_next_start();
  const int head = blockIdx.x % shape.heads, number = blockIdx.x / shape.heads;
  const QueryTile tile = find_query_tile<kRows>(shape.offsets, shape.sequences, number);
  wait_for_inputs();
  if (tile.first_query >= tile.length) return;

  const KeyRows there = keys_of(tile, shape.offsets, shape.key_offsets, shape.sequences);
  // The position of the tile's first query among the keys.
  const int position = tile.first_query + there.length - tile.length;
  const int64_t k_stride = shape.k_stride, v_stride = shape.v_stride;
  const int dim = shape.head_dim, kv_column = head / shape.group * dim;
  const float* query = q + tile.token * shape.q_stride + head * dim;
  const float* key = k + there.token * k_stride + kv_column;
  const float* value = v + there.token * v_stride + kv_column;
  const int bias_most = static_cast<int>(shape.bias_span) - 1;
  const float* bias = nullptr;  // of the head, at distance 0
  if (shape.bias) bias = shape.bias + head * (2 * shape.bias_span - 1) + bias_most;
  const int begin = max(position - shape.left, 0) / L::kKeys * L::kKeys;
  const int end = min(position + kRows + shape.right, there.length);
  copy_rows<kDim, kRows>(shared, L::kStride, query + tile.first_query * shape.q_stride,
                         shape.q_stride, tile.length - tile.first_query, dim, vectors);
  copy_rows<kDim, L::kKeys>(shared + L::kKey, L::kStride, key + begin * k_stride, k_stride,
                            end - begin, dim, vectors);
  end_copies();

  const int x = threadIdx.x % 16;
  // The thread's first row of the tile; the others are every second row after it.
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 16;
  const bool active = tile.first_query + threadIdx.x / 32 * 16 < tile.length;
  float* const weight = shared + L::kWeight + row * L::kWeights;
  float sums[kThreadRows] = {}, tops[kThreadRows], result[kThreadRows][L::kThreadColumns] = {};
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) tops[i] = -INFINITY;

  for (int first = begin; first < end; first += L::kKeys) {
    const int keys = min(end - first, L::kKeys);
    copy_rows<kDim, L::kKeys>(shared + L::kValue, kDim, value + first * v_stride, v_stride, keys,
                              dim, vectors);
    end_copies();
    wait_copies<1>();  // the keys
    __syncthreads();
    float score[kThreadRows][L::kThreadKeys] = {};
    if (active) {
      multiply_keys<kDim>(score, shared + row * L::kStride, shared + L::kKey + x * L::kStride, dim);
    }
    __syncthreads();
    if (first + L::kKeys < end) {
      copy_rows<kDim, L::kKeys>(shared + L::kKey, L::kStride, key + (first + L::kKeys) * k_stride,
                                k_stride, end - first - L::kKeys, dim, vectors);
    }
    end_copies();
    if (active) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const int at_query = position + row + 2 * i;
        float top = tops[i];
#pragma unroll
        for (int j = 0; j < L::kThreadKeys; ++j) {
          const int column = x + 16 * j, distance = first + column - at_query;
          const bool seen = column < keys && distance >= -shape.left && distance <= shape.right;
          float s = score[i][j] * (shape.scale * kLog2e);
          if (shape.soft_cap > 0.0f) {
            const float cap = shape.soft_cap * kLog2e;
            s = cap * tanhf(s / cap);
          }
          if (bias) s = fmaf(bias[max(min(distance, bias_most), -bias_most)], kLog2e, s);
          score[i][j] = seen ? s : -INFINITY;
          top = fmaxf(top, score[i][j]);
        }
#pragma unroll
        for (int lane = 1; lane < 16; lane *= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
        }
        const float base = top == -INFINITY ? 0.0f : top;  // a row may see no key so far
        const float correction = exp2f(tops[i] - base);
        tops[i] = top;
        sums[i] *= correction;
#pragma unroll
        for (int j = 0; j < L::kThreadKeys; ++j) {
          float e = exp2f(score[i][j] - base);
          sums[i] += e;
          if constexpr (kDrops) {
            const int token = tile.token + tile.first_query + row + 2 * i;
            e *= shape.dropout.factor_at(token * shape.heads + head, first + x + 16 * j);
          }
          weight[i * 2 * L::kWeights + x + 16 * j] = e;
        }
#pragma unroll
        for (int c = 0; c < L::kThreadColumns; ++c) result[i][c] *= correction;
      }
    }
    wait_copies<1>();  // the values
    __syncthreads();
    if (active) {
      multiply_values<kDim>(result, weight, shared + L::kValue + x * L::kVector, keys);
    }
    __syncthreads();
  }

  if (!active) return;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    float sum = sums[i];
#pragma unroll
    for (int lane = 1; lane < 16; lane *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    const int at_query = tile.first_query + row + 2 * i;
    if (at_query >= tile.length) continue;
    float* to = out + (tile.token + at_query) * shape.out_stride + head * dim;
    if (shape.log_sum_exp && x == 0) {
      shape.log_sum_exp[head * shape.log_sum_exp_stride + tile.token + at_query] =
          (tops[i] + log2f(sum)) / kLog2e;
    }
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int c = 0; c < L::kThreadColumns; c += L::kVector) {
#pragma unroll
      for (int e = 0; e < L::kVector; ++e) {
        const int column = c * 16 + x * L::kVector + e;
        if (column < dim) to[column] = result[i][c + e] * inverse;
      }
    }
  }
}

template <int kDim, bool kDrops>
void launch_as(const AttentionArguments& a, const Stream& stream) {
  const bool vectors = attention_vectors_fit<float>(a);
  const size_t bytes = Layout<kDim>::kBytes;
  allow_shared_memory<attention_kernel<kDim, kDrops>>(bytes, stream);
  launch(attention_kernel<kDim, kDrops>,
         dim3(static_cast<unsigned>(a.queries->query_tiles(kRows) * a.heads)), dim3(kThreads),
         bytes, stream, AttentionShape(a), static_cast<float*>(a.out),
         static_cast<const float*>(a.q.data), static_cast<const float*>(a.k.data),
         static_cast<const float*>(a.v.data), vectors);
}

template <int kDim>
void launch_attention(const AttentionArguments& a, const Stream& stream) {
  a.dropout.probability > 0 ? launch_as<kDim, true>(a, stream) : launch_as<kDim, false>(a, stream);
}

}  // namespace

void fp32_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim <= 32) return launch_attention<32>(a, stream);
  if (a.head_dim <= 64) return launch_attention<64>(a, stream);
  if (a.head_dim <= 128) return launch_attention<128>(a, stream);
  launch_attention<256>(a, stream);
}

}  // namespace fusewire::cuda
