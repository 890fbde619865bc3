// Attention over paged keys and values as its kernels see it: paged_attention.cu picks one by
// element type.
#pragma once

#include "core/kernels.h"

namespace fusewire::cuda {

// What the kernels need by value: a PagedBatch stays on the host.
//
// A row is a new token under one query head. Row r of a sequence and a kv head is token r / group
// under head r % group of those that read the kv head, so that rows share the keys they read.
struct PagedShape {
  int64_t out_stride, q_stride;
  const int32_t *offsets, *contexts, *table;  // of the batch, in device memory
  int sequences, table_width, page_shift;
  int heads, kv_heads, group, head_dim;
  int left, right;         // of the mask
  float scale, soft_cap;   // the first with that of the keys in it
  float k_scale, v_scale;  // of codes in the cache; 1 of others
  const float* bias;
  int bias_span;
  bool vectors;  // whether all rows can be accessed by 16 bytes

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

  // Where the biases of a query head have distance 0; and that at `distance` = key - query
  // positions.
  __device__ __forceinline__ int bias_row(int head) const {
    return head * (2 * bias_span - 1) + bias_span - 1;
  }
  __device__ __forceinline__ float bias_at(int row, int distance) const {
    return bias[row + max(min(distance, bias_span - 1), 1 - bias_span)];
  }
};

// Hopper's kernel, for sequences of at most 16 rows a kv head: whether it takes the shape, and it
// itself (T is __half or __nv_bfloat16).
bool sm90_paged_fits(const AttentionArguments& a);
template <class T>
void sm90_paged_attention(const AttentionArguments& a, const Stream& stream);
// The same for new tokens that are neither rotated nor in the cache; false, and nothing done,
// where there are others than those that it takes.
template <class T>
bool sm90_cached_attention(const AttentionArguments& a, const RotaryArguments* rotary,
                           const Stream& stream);

// Of one new token a sequence and a short context, without rotation: whether it is that, and it
// itself (T is __half or __nv_bfloat16); of new tokens that are not in the cache false, and nothing
// done, where it is not.
bool paged_short_fits(const AttentionArguments& a);
template <class T>
void paged_short_attention(const AttentionArguments& a, const Stream& stream);
template <class T>
bool cached_short_attention(const AttentionArguments& a, const Stream& stream);

// Tensor cores by mma.sync (T is __half or __nv_bfloat16), and CUDA cores in fp32.
template <class T>
void paged_mma_attention(const AttentionArguments& a, const Stream& stream);
void paged_fp32_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
