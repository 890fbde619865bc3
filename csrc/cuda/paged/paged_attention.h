// The implementations of attention over a paged KV cache, of which paged_attention.cu picks one by
// element type and shape, and what they share.
#pragma once

#include "core/kernels.h"

namespace fusewire::cuda {

// The arguments that the kernels take by value: a PagedBatch is an object of the host.
//
// A row is a new token under one query head. Row r of a sequence and a kv head is token r / group
// under the (r % group)-th of the query heads that read the kv head, so rows share the keys that
// they read.
struct PagedShape {
  int64_t out_stride, q_stride;
  const int32_t *offsets, *contexts, *table;  // those of the batch, in device memory
  int sequences, table_width, page_shift;
  int heads, kv_heads, group, head_dim;
  int left, right;         // the limits of the mask
  float scale, soft_cap;   // scale includes k_scale
  float k_scale, v_scale;  // of a float8 cache; 1 for others
  const float* bias;
  int bias_span;
  bool vectors;  // whether all rows can be accessed in vectors of 16 bytes

  PagedShape(const AttentionArguments& a, bool vectors)
      : out_stride(a.out_stride),
        q_stride(a.q.stride),
        offsets(a.queries->device_offsets()),
        contexts(a.pages->device_context_lengths()),
        table(a.pages->device_block_table()),
        sequences(static_cast<int>(a.pages->sequences())),
        table_width(static_cast<int>(a.pages->table_width())),
        page_shift(__builtin_ctzll(static_cast<uint64_t>(a.pages->page_size()))),
        heads(static_cast<int>(a.heads)),
        kv_heads(static_cast<int>(a.kv_heads)),
        group(static_cast<int>(a.heads / a.kv_heads)),
        head_dim(static_cast<int>(a.head_dim)),
        left(static_cast<int>(a.mask.left)),
        right(static_cast<int>(a.mask.right)),
        scale(a.scale * a.cache_format.k_scale),
        soft_cap(a.soft_cap),
        k_scale(a.cache_format.k_scale),
        v_scale(a.cache_format.v_scale),
        bias(a.bias),
        bias_span(static_cast<int>(a.bias_span)),
        vectors(vectors) {}

  // bias_row() returns the index of the bias of a query head at distance 0, bias_at() the bias of
  // that row at `distance` = key - query in positions.
  __device__ __forceinline__ int bias_row(int head) const {
    return head * (2 * bias_span - 1) + bias_span - 1;
  }
  __device__ __forceinline__ float bias_at(int row, int distance) const {
    return bias[row + max(min(distance, bias_span - 1), 1 - bias_span)];
  }
};

// The kernel for Hopper (T is __half or __nv_bfloat16). It serves sequences with at most 16 rows
// per kv head. `fits` returns whether it supports the shape.
bool sm90_paged_fits(const AttentionArguments& a);
template <class T>
void sm90_paged_attention(const AttentionArguments& a, const Stream& stream);
// The same for new tokens that are not in the cache yet; it also applies RoPE to queries and keys
// if `rotary` is not null. Returns false, and does nothing, if it does not support the shape or
// does not serve all sequences of the batch.
template <class T>
bool sm90_cached_attention(const AttentionArguments& a, const RotaryArguments* rotary,
                           const Stream& stream);

// The kernels for one new token per sequence and a short context (T is __half or __nv_bfloat16).
// `fits` returns whether the batch is one. cached_short_attention is for new tokens that are not in
// the cache yet, without RoPE; it returns false, and does nothing, if the batch is not one.
bool paged_short_fits(const AttentionArguments& a);
template <class T>
void paged_short_attention(const AttentionArguments& a, const Stream& stream);
template <class T>
bool cached_short_attention(const AttentionArguments& a, const Stream& stream);

// Paged attention on tensor cores by mma.sync (T is __half or __nv_bfloat16), and in fp32 on CUDA
// cores.
template <class T>
void paged_mma_attention(const AttentionArguments& a, const Stream& stream);
void paged_fp32_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
