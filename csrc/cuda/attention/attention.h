// The implementations of packed attention on this device, of which attention.cu picks one by shape,
// and what they share.
#pragma once

#include "core/kernels.h"
#include "cuda/attention/weight_dropout.h"
#include "cuda/element.h"

namespace fusewire::cuda {

// The arguments that every kernel here takes by value: a SequenceBatch is an object of the host.
struct AttentionShape {
  int64_t out_stride, q_stride, k_stride, v_stride;
  const int32_t* offsets;      // of the queries' sequences, in device memory
  const int32_t* key_offsets;  // of the keys' sequences; null: the same as offsets
  int sequences, heads, group, head_dim;
  int left, right;  // the limits of the mask
  float scale, soft_cap;
  const float* bias;
  int64_t bias_span;
  float* log_sum_exp;
  int64_t log_sum_exp_stride;
  WeightDropout dropout;

  explicit AttentionShape(const AttentionArguments& a)
      : out_stride(a.out_stride),
        q_stride(a.q.stride),
        k_stride(a.k.stride),
        v_stride(a.v.stride),
        offsets(a.queries->device_offsets()),
        key_offsets(a.self() ? nullptr : a.keys->device_offsets()),
        sequences(static_cast<int>(a.queries->sequences())),
        heads(static_cast<int>(a.heads)),
        group(static_cast<int>(a.heads / a.kv_heads)),
        head_dim(static_cast<int>(a.head_dim)),
        left(static_cast<int>(a.mask.left)),
        right(static_cast<int>(a.mask.right)),
        scale(a.scale),
        soft_cap(a.soft_cap),
        bias(a.bias),
        bias_span(a.bias_span),
        log_sum_exp(a.log_sum_exp),
        log_sum_exp_stride(a.log_sum_exp_stride),
        dropout(a.dropout) {}

  // Returns whether the mask can hide keys of a sequence.
  __device__ __forceinline__ bool masked() const {
    return left < static_cast<int>(kUnlimited) || right < static_cast<int>(kUnlimited);
  }
};

// Returns whether the scores are q k^T * scale over all keys of the query's own sequence, without
// bias or cap, and no weights are dropped. A mask wider than every sequence hides nothing.
inline bool plain_weights(const AttentionArguments& a) {
  const int64_t longest = a.queries->max_seqlen();
  return a.self() && a.mask.left >= longest && a.mask.right >= longest && !a.bias &&
         a.soft_cap <= 0 && a.dropout.probability <= 0;
}

// Returns whether, moreover, only the output is wanted and no log_sum_exp: the faster kernels
// compute nothing else.
inline bool plain_attention(const AttentionArguments& a) {
  return plain_weights(a) && !a.log_sum_exp;
}

// Returns whether all rows can be accessed in vectors of 16 bytes.
template <class T>
bool attention_vectors_fit(const AttentionArguments& a) {
  return a.head_dim % Vector<T>::kSize == 0 && vectors_fit<T>(a.q.data, a.q.stride) &&
         vectors_fit<T>(a.k.data, a.k.stride) && vectors_fit<T>(a.v.data, a.v.stride) &&
         vectors_fit<T>(a.out, a.out_stride);
}

// The most queries and keys of a sequence that a block holds in shared memory as a whole. Returns
// whether a batch has such sequences only, head_dim is at most 64, and there are so few queries per
// sequence that tiles of 64, one per sequence, would mostly be empty: with 50 of 64 rows in use the
// wgmma kernels are the faster ones.
inline constexpr int kShortSequence = 64, kFewQueries = 40;
inline bool short_sequences(const AttentionArguments& a) {
  return a.keys && a.head_dim <= 64 && a.queries->max_seqlen() <= kShortSequence &&
         a.keys->max_seqlen() <= kShortSequence &&
         a.queries->tokens() <= kFewQueries * a.queries->sequences();
}

// The largest head_dim that the kernels support.
inline constexpr int64_t kMaxHeadDim = 256;

// The kernel for plain attention on Hopper (T is __half or __nv_bfloat16): head_dim 64 or 128, k
// and v in the same rows, rows that TMA can address. `fits` returns whether it can be used.
bool sm90_attention_fits(const AttentionArguments& a);
template <class T>
void sm90_attention(const AttentionArguments& a, const Stream& stream);

// The kernel for attention on Hopper that is not plain: with a mask, separate key sequences,
// dropout or log_sum_exp, but no bias and no cap; head_dim 64 or 128. `fits` returns whether it can
// be used.
bool sm90_masked_attention_fits(const AttentionArguments& a);
template <class T>
void sm90_masked_attention(const AttentionArguments& a, const Stream& stream);

// The kernel for a batch of so few short sequences (plain, head_dim 64) that each tile of 16
// queries of a head has a multiprocessor to itself. `fits` returns whether the batch is one.
bool split_attention_fits(const AttentionArguments& a);
template <class T>
void split_attention(const AttentionArguments& a, const Stream& stream);

// The kernel for batches of short sequences in training (T is __half or __nv_bfloat16), with a
// mask, separate key sequences and dropout, but no bias and no cap. `fits` returns whether
// log_sum_exp is wanted and the batch is one.
bool short_attention_fits(const AttentionArguments& a);
template <class T>
void short_attention(const AttentionArguments& a, const Stream& stream);

// Attention on tensor cores by mma.sync (T is __half or __nv_bfloat16), for every shape.
template <class T>
void flash_attention(const AttentionArguments& a, const Stream& stream);

// Attention in fp32 on CUDA cores, for every shape.
void fp32_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
