// The backward pass of packed attention as its implementations on this device see it
// (core/attention_backward.h): attention_backward.cu picks one by type and shape.
//
// Two kernels each, and no sum of which blocks share the terms, so that bits never differ: one of a
// block a tile of queries, for dq, and one of a block a tile of keys, for dk and dv, which walks
// the queries of all heads that read it. Both compute the weights again.
#pragma once

#include "core/attention_backward.h"
#include "cuda/activation.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/query_tile.h"

namespace fusewire::cuda {

template <class T>
struct AttentionBackwardShape {
  AttentionShape forward;
  const T *q, *k, *v, *out, *dout;
  T *dq, *dk, *dv;
  int64_t dout_stride, dq_stride, dk_stride, dv_stride;

  explicit AttentionBackwardShape(const AttentionBackwardArguments& g)
      : forward(g.forward),
        q(static_cast<const T*>(g.forward.q.data)),
        k(static_cast<const T*>(g.forward.k.data)),
        v(static_cast<const T*>(g.forward.v.data)),
        out(static_cast<const T*>(g.forward.out)),
        dout(static_cast<const T*>(g.dout.data)),
        dq(static_cast<T*>(g.dq)),
        dk(static_cast<T*>(g.dk)),
        dv(static_cast<T*>(g.dv)),
        dout_stride(g.dout.stride),
        dq_stride(g.dq_stride),
        dk_stride(g.dk_stride),
        dv_stride(g.dv_stride) {}

  __device__ __forceinline__ int kv_heads() const { return forward.heads / forward.group; }
};

// A sequence: its queries and its keys, rows of the packed matrices.
struct AttendedSequence {
  int token, queries, key, keys;

  // Where query 0 stands among the keys.
  __device__ __forceinline__ int position() const { return keys - queries; }
};

// Queries or keys [begin, end), begin a multiple of the tile they are walked in.
struct SeenRange {
  int begin, end;
};

// The keys that some of the queries [first, last) see.
template <int kTile>
__device__ __forceinline__ SeenRange keys_seen(const AttendedSequence& of,
                                               const AttentionShape& shape, int first, int last) {
  return {max(of.position() + first - shape.left, 0) / kTile * kTile,
          min(of.position() + last + shape.right, of.keys)};
}

// The queries that see some of the keys [first, last).
template <int kTile>
__device__ __forceinline__ SeenRange queries_seeing(const AttendedSequence& of,
                                                    const AttentionShape& shape, int first,
                                                    int last) {
  return {max(first - shape.right - of.position(), 0) / kTile * kTile,
          min(last + shape.left - of.position(), of.queries)};
}

// The sequence of a tile of queries, and of a tile of keys, of which `tile` counts the tokens.
__device__ __forceinline__ AttendedSequence sequence_of_queries(const QueryTile& tile,
                                                                const AttentionShape& shape) {
  const KeyRows keys = keys_of(tile, shape.offsets, shape.key_offsets, shape.sequences);
  return {tile.token, tile.length, keys.token, keys.length};
}
__device__ __forceinline__ AttendedSequence sequence_of_keys(const QueryTile& tile,
                                                             const AttentionShape& shape) {
  if (!shape.key_offsets) return {tile.token, tile.length, tile.token, tile.length};
  const KeyRows queries = keys_of(tile, shape.key_offsets, shape.offsets, shape.sequences);
  return {queries.token, queries.length, tile.token, tile.length};
}

// A weight and the gradient of its score, by the score's product q k^T and that of the weight's
// gradient dout v^T.
struct WeightGradient {
  float kept;    // the weight, times the mask of dropout
  float dscore;  // by q k^T * scale
  float dbias;   // by what is added to it
};

// For a query and a key at `distance` = key - query positions; `factor` is the mask of dropout.
// tanh_of is the tanh of the kernel's precision.
template <class Tanh>
__device__ __forceinline__ WeightGradient differentiate(const AttentionShape& shape,
                                                        const float* bias, int distance, bool real,
                                                        float product, float dweight, float factor,
                                                        float log_sum_exp, float dot,
                                                        Tanh tanh_of) {
  float score = product * shape.scale, slope = 1.0f;
  if (shape.soft_cap > 0.0f) {
    const float of_cap = tanh_of(score / shape.soft_cap);
    slope = 1.0f - of_cap * of_cap;
    score = shape.soft_cap * of_cap;
  }
  if (bias) {
    const int most = static_cast<int>(shape.bias_span) - 1;
    score += bias[max(min(distance, most), -most)];
  }
  const bool seen = real && distance >= -shape.left && distance <= shape.right;
  const float weight = seen ? exp2f((score - log_sum_exp) * kLog2E) : 0.0f;
  const float kept = weight * factor;
  const float dbias = kept * dweight - weight * dot;
  return {kept, dbias * slope, dbias};
}

// The biases of a head, at distance 0; null: none.
__device__ __forceinline__ const float* biases_of(const AttentionShape& shape, int head) {
  return shape.bias ? shape.bias + head * (2 * shape.bias_span - 1) + shape.bias_span - 1 : nullptr;
}

// Our kernels for Hopper (T is __half or __nv_bfloat16): head_dim 64 or 128 without bias or cap,
// rows that TMA can address. `fits` says whether they can be used.
bool sm90_attention_backward_fits(const AttentionBackwardArguments& g);
template <class T>
void sm90_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

// Tensor cores by mma.sync (T is __half or __nv_bfloat16). `fits` says whether a head is as narrow
// as they want it, and no gradient of a bias is wanted.
bool flash_attention_backward_fits(const AttentionBackwardArguments& g);
template <class T>
void flash_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

// Multiply-adds in fp32: every type and shape, and dbias.
template <class T>
void plain_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

}  // namespace fusewire::cuda
