// Attention as every kernel sees it, over packed keys or keys in pages, on every device.
#pragma once

#include <cstdint>

#include "core/dropout.h"
#include "core/paged_batch.h"
#include "core/sequence_batch.h"

namespace fusewire {

// A side of a mask without a limit: more than any sequence has tokens, and two of them still fit
// the int32 that kernels count in.
inline constexpr int64_t kUnlimited = int64_t{1} << 29;

// Query i sees key j when i - j <= left and j - i <= right. The default is everything; right = 0 is
// causal; left = right = w is a window on both sides; left = w - 1, right = 0 the last w tokens.
//
// Positions count a sequence's keys. The last query stands at the last key: query t of n stands at
// position m - n + t of m keys, which is t itself in self-attention.
struct AttentionMask {
  int64_t left = kUnlimited, right = kUnlimited;

  bool full() const { return left >= kUnlimited && right >= kUnlimited; }
};

// What the numbers of a cache are: of the type that is computed in, or codes of float8 e4m3, a byte
// each, of key / k_scale and value / v_scale. A number beyond 448 is stored as 448.
struct CacheFormat {
  bool float8 = false;
  float k_scale = 1, v_scale = 1;
};

// What an attention is, apart from its tensors.
struct AttentionSpec {
  int64_t heads;  // of q
  float scale;
  AttentionMask mask;
  float soft_cap = 0;              // 0: none
  Dropout dropout = {};            // of the weights, after the softmax
  float k_scale = 1, v_scale = 1;  // of a cache in float8
};

// Rows of heads next to one another: head h of row r begins at data + r * stride + h * head_dim.
struct HeadRows {
  const void* data;
  int64_t stride;  // elements between rows
};

// For each sequence and head: out = softmax(s) v, where s = q k^T * scale, then soft_cap * tanh(s /
// soft_cap) where soft_cap > 0, then + bias of the distance. Query head h reads kv head
// h / (heads / kv_heads). Exactly one of `keys` and `pages` is given.
struct AttentionArguments {
  HeadRows q, k, v;  // with pages k and v are those of the new tokens, for cached_attention alone
  void* out;         // rows of heads, as q
  int64_t out_stride;
  int64_t heads, kv_heads, head_dim;

  const SequenceBatch* queries;
  const SequenceBatch* keys;      // of packed k and v
  const PagedBatch* pages;        // of the caches
  void *key_cache, *value_cache;  // [cache_pages, kv_heads, page_size, head_dim], dense; only
  int64_t cache_pages;            // cached_attention writes them

  AttentionMask mask;
  float scale, soft_cap;
  // [heads, 2 * bias_span - 1], at (position of the key - that of the query) + bias_span - 1;
  // distances beyond take the ends. Null: none.
  const float* bias;
  int64_t bias_span;
  float* log_sum_exp;  // [heads, queries], log(sum(exp(s))) of each query; null: not wanted
  int64_t log_sum_exp_stride;
  Dropout dropout = {};
  CacheFormat cache_format = {};

  // Whether queries and keys are the same sequences.
  bool self() const { return keys && keys->device_offsets() == queries->device_offsets(); }
  int64_t bias_width() const { return 2 * bias_span - 1; }
};

}  // namespace fusewire
