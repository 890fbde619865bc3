// Operations on scores between q . k and the softmax, with queries or keys along the lanes.
#pragma once

#include "core/attention.h"
#include "cpu/attention_tile.h"
#include "cpu/dropout.h"

namespace fusewire::FUSEWIRE_TARGET {

// Returns the factor of q that gives scores in the units that `capped_score` expects.
inline float query_scale(const AttentionArguments& a) {
  return a.soft_cap > 0 ? a.scale : a.scale * kLog2e;
}

// Returns the score after the soft cap, in units of log2.
FUSEWIRE_INLINE Vec capped_score(const AttentionArguments& a, Vec s) {
  return a.soft_cap > 0 ? capped(s, a.soft_cap) * kLog2e : s;
}

// Returns the column of a head's bias for `distance` = key position - query position.
inline int64_t bias_column(const AttentionArguments& a, int64_t distance) {
  const int64_t most = a.bias_span - 1;
  return most + (distance < -most ? -most : distance > most ? most : distance);
}

// to[u] = the bias at distance `farthest` - u, in units of log2. Queries run along the lanes, so a
// reversed copy makes the biases of a key ascend. The bias of query i and of the n-th key before
// the farthest is to[n + i].
inline void reversed_biases(const AttentionArguments& a, int64_t head, int64_t farthest,
                            int64_t count, float* to) {
  const float* table = a.bias + head * a.bias_width();
  for (int64_t u = 0; u < count; ++u) to[u] = table[bias_column(a, farthest - u)] * kLog2e;
}

// Returns the biases of queries and keys at `distance`, in units of log2. Not inlined, so that the
// loops over scores keep their registers where there is no bias.
template <class HeadOf>
__attribute__((noinline)) Vec biases(const AttentionArguments& a, Vec distance, HeadOf head_of) {
  Vec bias = {};
  for (int i = 0; i < kLanes; ++i) {
    const float* table = a.bias + head_of(i) * a.bias_width();
    bias[i] = table[bias_column(a, static_cast<int64_t>(distance[i]))] * kLog2e;
  }
  return bias;
}

// Returns the score in units of log2 of a key at `distance` = key position - query position (exact:
// contexts stay below 2^24), masked if the query may not attend to it. head_of(lane) is the query's
// head.
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

// Returns 0, 1, 2, ... along the lanes.
FUSEWIRE_INLINE Vec lane_numbers() {
  Vec v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(i);
  return v;
}

// Returns the rows of the dropout mask (core/dropout.h) of the queries from packed token `token`
// on.
FUSEWIRE_INLINE UintVec dropout_rows(const AttentionArguments& a, int64_t token, int64_t head) {
  UintVec row = {};
  for (int i = 0; i < kLanes; ++i) row[i] = static_cast<uint32_t>((token + i) * a.heads + head);
  return row;
}

// Returns the first position that a query at `position` attends to.
inline int64_t first_visible(const AttentionArguments& a, int64_t position) {
  return position > a.mask.left ? position - a.mask.left : 0;
}

// Returns log(sum(exp(s))) of scores in units of log2, from their maximum and their sum relative to
// it.
inline float log_sum_exp_of(float highest, float total) {
  return (highest + __builtin_log2f(total)) * 0.693147181f;
}

}  // namespace fusewire::FUSEWIRE_TARGET
