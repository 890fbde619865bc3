// The arguments of attention over packed keys or keys in pages, for every target.
#pragma once

#include <cstdint>

#include "core/dropout.h"
#include "core/paged_batch.h"
#include "core/sequence_batch.h"

namespace fusewire {

// A side of a mask with this value has no limit: it is more than any sequence has tokens, and the
// sum of two still fits the int32 that kernels compute with.
inline constexpr int64_t kUnlimited = int64_t{1} << 29;

// Query i attends to key j when i - j <= left and j - i <= right. The default is all keys;
// right = 0 is causal; left = right = w is a window on both sides; left = w - 1, right = 0 is the
// last w tokens.
//
// Positions count the keys of a sequence. The last query is at the position of the last key: query
// t of n is at position m - n + t of m keys, which is t itself in self-attention.
struct AttentionMask {
  int64_t left = kUnlimited, right = kUnlimited;

  bool full() const { return left >= kUnlimited && right >= kUnlimited; }
};

// How a KV cache stores its elements: in the element type of the kernels, or as float8 e4m3, one
// byte each, of key / k_scale and value / v_scale. Values beyond 448 saturate to 448.
struct CacheFormat {
  bool float8 = false;
  float k_scale = 1, v_scale = 1;
};

// The parameters of an attention, apart from its tensors.
struct AttentionSpec {
  int64_t heads;  // query heads
  float scale;
  AttentionMask mask;
  float soft_cap = 0;              // 0: none
  Dropout dropout = {};            // of the attention weights, after the softmax
  float k_scale = 1, v_scale = 1;  // scales of a float8 cache
};

// Rows of adjacent heads: head h of row r begins at data + r * stride + h * head_dim.
struct HeadRows {
  const void* data;
  int64_t stride;  // elements between rows
};

// For each sequence and head: out = softmax(s) v. s = q k^T * scale; if soft_cap > 0, it becomes
// soft_cap * tanh(s / soft_cap); then the bias of the distance is added. Query head h reads kv head
// h / (heads / kv_heads). Exactly one of `keys` and `pages` is given.
struct AttentionArguments {
  HeadRows q, k, v;  // with `pages`: k and v of the new tokens, read by cached_attention alone
  void* out;         // rows of heads, as q
  int64_t out_stride;
  int64_t heads, kv_heads, head_dim;

  const SequenceBatch* queries;
  const SequenceBatch* keys;      // sequences of packed k and v
  const PagedBatch* pages;        // pages of the caches
  void *key_cache, *value_cache;  // [cache_pages, kv_heads, page_size, head_dim], dense; only
  int64_t cache_pages;            // cached_attention writes them

  AttentionMask mask;
  float scale, soft_cap;
  // Biases [heads, 2 * bias_span - 1], indexed by (key position - query position) + bias_span - 1;
  // distances beyond the ends are clamped. Null: none.
  const float* bias;
  int64_t bias_span;
  float* log_sum_exp;  // [heads, queries]: log(sum(exp(s))) of each query; null: not computed
  int64_t log_sum_exp_stride;
  Dropout dropout = {};
  CacheFormat cache_format = {};

  // Returns whether queries and keys are the same sequences.
  bool self() const { return keys && keys->device_offsets() == queries->device_offsets(); }
  int64_t bias_width() const { return 2 * bias_span - 1; }
};

}  // namespace fusewire
