// The implementations of the backward pass of packed attention (core/attention_backward.h) on this
// device, of which attention_backward.cu picks one by type and shape, and what they share.
//
// Those for sequences of any length have two kernels. In the first, a block computes dq for a tile
// of queries. In the second, a block computes dk and dv for a tile of keys and iterates over the
// queries of all heads that read it. Both recompute the weights. No two blocks add to the same sum,
// so the result has the same bits every time.
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

// A sequence: its first rows in the packed matrices of queries (`token`) and of keys (`key`), and
// its numbers of queries and keys.
struct AttendedSequence {
  int token, queries, key, keys;

  // Returns the position of query 0 among the keys.
  __device__ __forceinline__ int position() const { return keys - queries; }
};

// A range [begin, end) of queries or keys; begin is a multiple of the tile size of the loop over
// it.
struct SeenRange {
  int begin, end;
};

// Returns the keys that any of the queries [first, last) sees.
template <int kTile>
__device__ __forceinline__ SeenRange keys_seen(const AttendedSequence& of,
                                               const AttentionShape& shape, int first, int last) {
  return {max(of.position() + first - shape.left, 0) / kTile * kTile,
          min(of.position() + last + shape.right, of.keys)};
}

// Returns the queries that see any of the keys [first, last).
template <int kTile>
__device__ __forceinline__ SeenRange queries_seeing(const AttendedSequence& of,
                                                    const AttentionShape& shape, int first,
                                                    int last) {
  return {max(first - shape.right - of.position(), 0) / kTile * kTile,
          min(last + shape.left - of.position(), of.queries)};
}

// Returns the sequence of a tile of queries or of a tile of keys, which a QueryTile describes in
// both cases: its token, length and first_query are then those of keys.
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

// A weight and the gradient of its score, computed from the products q k^T of the score and dout
// v^T of the gradient of the weight.
struct WeightGradient {
  float kept;    // the weight times the dropout mask
  float dscore;  // with respect to q k^T * scale
  float dbias;   // with respect to the bias
};

// Differentiates the attention of a query to a key, `distance` = key - query in positions.
// `product` is q k^T, `dweight` is dout v^T, `factor` is the dropout mask, and a key that is not
// `real` has weight 0. tanh_of is the tanh of the kernel's precision.
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

// Returns a pointer to the bias of a head at distance 0, or null if there is no bias.
__device__ __forceinline__ const float* biases_of(const AttentionShape& shape, int head) {
  return shape.bias ? shape.bias + head * (2 * shape.bias_span - 1) + shape.bias_span - 1 : nullptr;
}

// The kernel for batches of short sequences (T is __half or __nv_bfloat16). `fits` returns whether
// they are short, each query head has keys of its own and no gradient of the bias is wanted.
bool short_attention_backward_fits(const AttentionBackwardArguments& g);
template <class T>
void short_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

// The kernels for Hopper (T is __half or __nv_bfloat16): head_dim 64 or 128, no bias, no cap, rows
// that TMA can address. `fits` returns whether they can be used.
bool sm90_attention_backward_fits(const AttentionBackwardArguments& g);
template <class T>
void sm90_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

// The kernels on tensor cores by mma.sync (T is __half or __nv_bfloat16). `fits` returns whether
// head_dim is at most 128 and no gradient of the bias is wanted.
bool flash_attention_backward_fits(const AttentionBackwardArguments& g);
template <class T>
void flash_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

// The kernels that multiply and accumulate in fp32: for every type and shape, and for dbias.
template <class T>
void plain_attention_backward(const AttentionBackwardArguments& g, const Stream& stream);

}  // namespace fusewire::cuda
