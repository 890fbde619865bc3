// Self-attention over packed sequences, forward and backward (layers/attention.h).
#pragma once

#include "layers/attention.h"
#include "train/block.h"

namespace fusewire::train {

struct AttentionOptions : layers::HeadOptions {
  float dropout = 0;                   // probability that an attention weight is dropped
  std::optional<Norm> q_norm, k_norm;  // RMSNorm of each head before RoPE, [head_dim]
  std::optional<layers::Rope> rope;
  Tensor negative_sin;                   // of RoPE: rotates gradients back
  std::optional<int64_t> position_bias;  // index in Pass.biases of the bias that is added to scores
};

class Attention : public Sublayer {
 public:
  // The rows of qkv are q | k | v. Throws Error if weights and options do not fit.
  Attention(std::shared_ptr<const Linear> qkv, std::shared_ptr<const Linear> output,
            AttentionOptions options);

  void forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const override;
  void drop(SublayerActivations& a, const Pass& pass) const override;
  Value backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                 const Pass& pass) const override;
  void expect_within(const Tensor& flat) const override;

 private:
  struct Heads {
    Tensor q, k, v;
  };
  Heads split(const Tensor& qkv) const;
  AttentionSpec spec(const Pass& pass) const;
  // Returns the position bias; null: none. Throws Error for a pass without it.
  const Tensor* bias(const Pass& pass) const;
  void backward_heads(const Heads& d, const Tensor& dinner, const SublayerActivations& a,
                      const Pass& pass) const;
  void rotate(const Tensor& qkv, const Tensor& sin, const Pass& pass) const;

  std::shared_ptr<const Linear> qkv_;
  AttentionOptions options_;
  int64_t head_dim_;
};

}  // namespace fusewire::train
