// The backward pass of attention as its kernels see it.
#pragma once

#include "core/attention.h"

namespace fusewire {

// Gradients of a packed attention by its queries, keys, values and biases. With the weights
// P = exp(s - log_sum_exp), the mask M of dropout (0 or 1 / (1 - probability)) and D = the sum of
// dout * out over a query's head:
//   dv = (P M)^T dout;  ds = P (M (dout v^T) - D);  dbias = the sum of ds over each distance;
//   dq = scale ds' k;  dk = scale ds'^T q;  ds' = ds (1 - (s / soft_cap)^2), s capped, before bias
// (Dao 2023, "FlashAttention-2", algorithm 2).
struct AttentionBackwardArguments {
  AttentionArguments forward;  // with its result `out` and log_sum_exp, which are read
  HeadRows dout;               // as out
  void *dq, *dk, *dv;          // rows of heads, as q, k and v
  int64_t dq_stride, dk_stride, dv_stride;
  float* dbias;  // [heads, 2 * bias_span - 1]; null: not wanted
};

}  // namespace fusewire
