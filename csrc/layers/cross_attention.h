// Attention of a decoder's tokens to the encoder's output (Vaswani et al. 2017, section 3.2.3).
#pragma once

#include "layers/block.h"

namespace fusewire::layers {

// Every token attends to the whole source of its sequence. The keys and values of sources are
// stored beforehand, in the planes of the self-attention before this block, in pages of their own:
// both use one pool of pages.
class CrossAttention : public Sublayer {
 public:
  // q has rows for each head; `scale` multiplies scores, 0: 1 / sqrt(head_dim). Throws Error if
  // weights and heads do not fit.
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
