// Attention of a decoder's tokens to the packed output of an encoder, forward and backward (Vaswani
// et al. 2017, section 3.2.3).
#pragma once

#include "train/block.h"

namespace fusewire::train {

// Every token attends to the whole source of its sequence. Each layer has its own product for keys
// and values: one product for all layers (LightSeq2) would keep the gradients of all layers until
// those of the lowest one are known.
class CrossAttention : public Sublayer {
 public:
  // q has rows for each head, kv rows k | v for the source; `scale` multiplies scores, 0: 1 /
  // sqrt(head_dim). dropout: the probability that an attention weight is dropped. Throws Error if
  // weights and heads do not fit.
  CrossAttention(std::shared_ptr<const Linear> q, std::shared_ptr<const Linear> kv,
                 std::shared_ptr<const Linear> output, int64_t heads, float scale, float dropout);

  // Throws Error for a pass without a source.
  void forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const override;
  void drop(SublayerActivations& a, const Pass& pass) const override;
  // Adds the gradient of the source to pass.gradients.source.
  Value backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                 const Pass& pass) const override;
  void expect_within(const Tensor& flat) const override;

 private:
  Tensor keys(const Tensor& kv) const { return kv.columns(0, q_->out_features()); }
  Tensor values(const Tensor& kv) const {
    return kv.columns(q_->out_features(), q_->out_features());
  }
  AttentionSpec spec(const Pass& pass) const {
    return {heads_, scale_, {}, 0, pass.dropout_inside(dropout_)};
  }

  std::shared_ptr<const Linear> q_, kv_;
  int64_t heads_;
  float scale_, dropout_;
};

}  // namespace fusewire::train
