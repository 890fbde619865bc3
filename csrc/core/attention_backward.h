// The arguments of the backward pass of attention, for every target.
#pragma once

#include "core/attention.h"

namespace fusewire {

// Gradients of packed attention with respect to its queries, keys, values and biases. With the
// weights P = exp(s - log_sum_exp), the dropout mask M (0 or 1 / (1 - probability)) and D = the sum
// of dout * out over the head of a query:
//   dv = (P M)^T dout;  ds = P (M (dout v^T) - D);  dbias = the sum of ds over each distance;
//   dq = scale ds' k;  dk = scale ds'^T q;  ds' = ds (1 - (s / soft_cap)^2)
// (Dao 2023, "FlashAttention-2", algorithm 2). In ds', s is after the soft cap and before the bias.
struct AttentionBackwardArguments {
  AttentionArguments forward;  // of the forward pass; its results out and log_sum_exp are read
  HeadRows dout;               // gradient of out
  void *dq, *dk, *dv;          // rows of heads, as q, k and v
  int64_t dq_stride, dk_stride, dv_stride;
  float* dbias;  // [heads, 2 * bias_span - 1]; null: not computed
};

}  // namespace fusewire
