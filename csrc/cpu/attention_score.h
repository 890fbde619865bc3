// What a score becomes between q . k and the softmax, for queries or for keys along the lanes.
#pragma once

#include "core/attention.h"
#include "cpu/attention_tile.h"
#include "cpu/dropout.h"

namespace fusewire::FUSEWIRE_TARGET {

// The factor of q, so that `capped_score` gets scores in the units that it wants.
inline float query_scale(const AttentionArguments& a) {
  return a.soft_cap > 0 ? a.scale : a.scale * kLog2e;
}

// In units of log2.
FUSEWIRE_INLINE Vec capped_score(const AttentionArguments& a, Vec s) {
  return a.soft_cap > 0 ? capped(s, a.soft_cap) * kLog2e : s;
}

// The column of a head's bias for `distance` = key - query positions.
inline int64_t bias_column(const AttentionArguments& a, int64_t distance) {
  const int64_t most = a.bias_span - 1;
  return most + (distance < -most ? -most : distance > most ? most : distance);
}

// to[u] = the bias at `farthest` - u, in units of log2: queries run along lanes, so a reversed copy
// makes the biases of a key ascend. That of query i and of the key n places before the farthest is
// to[n + i].
inline void reversed_biases(const AttentionArguments& a, int64_t head, int64_t farthest,
                            int64_t count, float* to) {
  const float* table = a.bias + head * a.bias_width();
  for (int64_t u = 0; u < count; ++u) to[u] = table[bias_column(a, farthest - u)] * kLog2e;
}

// The biases of queries and keys at `distance`, in units of log2. Not inlined, so that the loops
// over scores keep their registers where there is no bias.
template <class HeadOf>
__attribute__((noinline)) Vec biases(const AttentionArguments& a, Vec distance, HeadOf head_of) {
  Vec bias = {};
  for (int i = 0; i < kLanes; ++i) {
    const float* table = a.bias + head_of(i) * a.bias_width();
    bias[i] = table[bias_column(a, static_cast<int64_t>(distance[i]))] * kLog2e;
  }
  return bias;
}

// The score in units of log2 of a key at `distance` = key - query positions (exact: contexts stay
// below 2^24), hidden where the query may not see it. head_of(lane) is the query's head.
template <class HeadOf>
FUSEWIRE_INLINE Vec adjusted(const AttentionArguments& a, Vec s, Vec distance, HeadOf head_of) {
  s = capped_score(a, s);
  if (a.bias) s += biases(a, distance, head_of);
  s = distance > static_cast<float>(a.mask.right) ? broadcast(kMasked) : s;
  if (a.mask.left < kUnlimited) {
    s = distance < static_cast<float>(-a.mask.left) ? broadcast(kMasked) : s;
  }
  return s;
}

// 0, 1, 2, ... along the lanes.
FUSEWIRE_INLINE Vec lane_numbers() {
  Vec v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(i);
  return v;
}

// The rows of the mask of dropout (core/dropout.h) of the queries from packed token `token` on.
FUSEWIRE_INLINE UintVec dropout_rows(const AttentionArguments& a, int64_t token, int64_t head) {
  UintVec row = {};
  for (int i = 0; i < kLanes; ++i) row[i] = static_cast<uint32_t>((token + i) * a.heads + head);
  return row;
}

// The first position that a query sees.
inline int64_t first_visible(const AttentionArguments& a, int64_t position) {
  return position > a.mask.left ? position - a.mask.left : 0;
}

// log(sum(exp(s))) of scores in units of log2, by their maximum and their sum relative to it.
inline float log_sum_exp_of(float highest, float total) {
  return (highest + __builtin_log2f(total)) * 0.693147181f;
}

}  // namespace fusewire::FUSEWIRE_TARGET
