// The online softmax between the two products of attention, in place in the registers that wgmma
// writes and reads (fragments: sm90_wgmma.h). Each thread holds elements of two rows, which it
// shares with the three other threads of its quad.
#pragma once

#include <cstdint>

#include "cuda/activation.h"
#include "cuda/reduce.h"

namespace fusewire::cuda::sm90 {

// Scores are taken relative to a reference of their row. It is at most the highest score so far,
// and may lag behind it by a factor of up to 2^8 in the weights, which avoids most corrections of
// the output. Weights are at most 2^8, far below the largest fp16.
inline constexpr float kSlack = 8.0f;

struct SoftmaxRows {
  float reference[2] = {-1e30f, -1e30f};  // of each row, as an unscaled score
  float total[2] = {0.0f, 0.0f};          // the sum of this thread's weights of each row
};

// Replaces scores by weights 2^((score - reference) * scale) and adds them to the totals. Returns
// whether a row of this warp has a new reference. The caller must then multiply the output by
// `correction`; the totals already are.
template <int kCount>
__device__ __forceinline__ bool softmax(float (&s)[kCount], float scale, SoftmaxRows& rows,
                                        float (&correction)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float high = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < kCount / 4; ++j) {
      high = fmaxf(high, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    }
    high = reduce_lanes<4>(high, Max{});
    const float rise = (high - rows.reference[h]) * scale;
    correction[h] = 1.0f;
    if (rise > kSlack) {
      correction[h] = fast_exp2(-rise);
      rows.reference[h] = high;
      rows.total[h] *= correction[h];
    }
  }
  const bool corrected = __any_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float shift = -rows.reference[h] * scale;
    float sum[2] = {rows.total[h], 0.0f};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[4 * j + 2 * h + i];
        x = fast_exp2(fmaf(x, scale, shift));
        sum[i] += x;
      }
    }
    rows.total[h] = sum[0] + sum[1];
  }
  return corrected;
}

// Sets the scores of the keys from `keys` on to -infinity.
template <int kCount>
__device__ __forceinline__ void mask_keys(float (&s)[kCount], int keys) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i / 4 * 8 + i % 2 + first >= keys) s[i] = -INFINITY;
  }
}

}  // namespace fusewire::cuda::sm90
