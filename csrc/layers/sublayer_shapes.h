// How the weights and settings of a sublayer fit each other, whether it serves or trains.
#pragma once

#include "core/attention.h"
#include "layers/block.h"

namespace fusewire::layers {

// What attentions of every kind have.
struct HeadOptions {
  int64_t heads;
  int64_t kv_heads = 0;  // a divisor of heads; 0: as many
  AttentionMask mask = {};
  float scale = 0;     // of scores; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;  // scores become soft_cap * tanh(score / soft_cap); 0: they stay
};

// Puts numbers in the place of defaults. qkv: of its weight, with rows q | k | v. Returns head_dim.
// Error when they do not fit.
int64_t complete(HeadOptions& options, const Shape& qkv);

// Puts 1 / sqrt(head_dim) in the place of a scale of 0. q: of the weight of cross attention, with
// rows for each head. Returns head_dim. Error when heads do not divide the rows.
int64_t complete_cross(int64_t heads, float& scale, const Shape& q);

// Error when a norm of each head, with a weight of this shape, is no RMSNorm over head_dim.
void expect_head_norm(Norm::Kind kind, const Shape& weight, int64_t head_dim);

// Columns of what a feed-forward activates, or gates, of a product with so many. Error for an odd
// number that is gated.
int64_t activated_width(int64_t intermediate, bool gated);

// Error when the weight of the output product is not [hidden, inner_width].
void expect_output(const char* sublayer, const Shape& output, int64_t hidden, int64_t inner_width);

}  // namespace fusewire::layers
