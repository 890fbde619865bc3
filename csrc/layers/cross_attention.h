// Attention of a decoder's tokens to the sources that an encoder read (Vaswani et al. 2017, section
// 3.2.3).
#pragma once

#include "layers/block.h"

namespace fusewire::layers {

// Every token sees the whole source of its sequence. Keys and values of sources are stored before,
// in the planes of the self-attention in front of this block, in pages of their own: one pool of
// pages holds both.
class CrossAttention : public Sublayer {
 public:
  // q has a row for each head; scale of scores, 0: 1 / sqrt(head_dim). Error when weights and heads
  // do not fit.
  CrossAttention(std::shared_ptr<const Linear> q, std::shared_ptr<const Linear> output,
                 int64_t heads, float scale);

  void compute(const Tensor& context, const Norm* norm, Pass& pass) const override;
  int64_t scratch_width() const override { return q_->out_features(); }
  bool attends() const override { return true; }

 private:
  std::shared_ptr<const Linear> q_;
  int64_t heads_, head_dim_;
  float scale_;
};

}  // namespace fusewire::layers
