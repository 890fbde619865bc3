// Checks that the weights and settings of a sublayer fit each other, for serving and for training.
#pragma once

#include "core/attention.h"
#include "layers/block.h"

namespace fusewire::layers {

// The options of every kind of attention.
struct HeadOptions {
  int64_t heads;
  int64_t kv_heads = 0;  // a divisor of heads; 0: as many as heads
  AttentionMask mask = {};
  float scale = 0;     // multiplies scores; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;  // scores become soft_cap * tanh(score / soft_cap); 0: unchanged
};

// Replaces defaults by values. `qkv` is the shape of the weight, with rows q | k | v. Returns
// head_dim. Throws Error if they do not fit.
int64_t complete(HeadOptions& options, const Shape& qkv);

// Replaces a scale of 0 by 1 / sqrt(head_dim). `q` is the shape of cross attention's weight, with
// rows for each head. Returns head_dim. Throws Error if heads does not divide the rows.
int64_t complete_cross(int64_t heads, float& scale, const Shape& q);

// Throws Error if a norm per head, with a weight of this shape, is not an RMSNorm over head_dim.
void expect_head_norm(Norm::Kind kind, const Shape& weight, int64_t head_dim);

// Returns the columns of a feed-forward after its activation, or gate, given those of its
// intermediate product. Throws Error for an odd number of gated columns.
int64_t activated_width(int64_t intermediate, bool gated);

// Throws Error if the weight of the output product is not [hidden, inner_width].
void expect_output(const char* sublayer, const Shape& output, int64_t hidden, int64_t inner_width);

}  // namespace fusewire::layers
