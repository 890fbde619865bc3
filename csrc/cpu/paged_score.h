// What a score becomes after q . k, for queries or for keys along the lanes.
#pragma once

#include "core/kernels.h"
#include "cpu/attention_tile.h"

namespace fusewire::FUSEWIRE_TARGET {

// The factor of q, so that `adjusted` gets scores in the units that it wants.
inline float query_scale(const PagedAttentionArguments& a) {
  return a.soft_cap > 0 ? a.scale : a.scale * kLog2e;
}

// The slope of a query head in units of log2.
inline float slope_of(const PagedAttentionArguments& a, int64_t head) {
  return a.alibi_slopes ? a.alibi_slopes[head] * kLog2e : 0.0f;
}

// The score in units of log2 of a key at `distance` = key - query positions (exact: contexts stay
// below 2^24), hidden where the query may not see it.
FUSEWIRE_INLINE Vec adjusted(const PagedAttentionArguments& a, Vec s, Vec distance, Vec slope) {
  if (a.soft_cap > 0) s = capped(s, a.soft_cap) * kLog2e;
  if (a.alibi_slopes) s += slope * distance;
  s = distance > 0.0f ? broadcast(kMasked) : s;
  if (a.window > 0) s = distance > static_cast<float>(-a.window) ? s : broadcast(kMasked);
  return s;
}

// 0, 1, 2, ... along the lanes.
FUSEWIRE_INLINE Vec lane_numbers() {
  Vec v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(i);
  return v;
}

// The first position that a query sees.
inline int64_t first_visible(const PagedAttentionArguments& a, int64_t position) {
  return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

}  // namespace fusewire::FUSEWIRE_TARGET
