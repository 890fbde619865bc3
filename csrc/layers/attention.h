// Self-attention (Vaswani et al. 2017), over a packed batch or over a KV cache.
#pragma once

#include "layers/sublayer_shapes.h"

namespace fusewire::layers {

// The cosines and sines of rotary position embeddings, float32[positions, rotary_dim / 2].
struct Rope {
  Tensor cos, sin;
};

struct AttentionOptions : HeadOptions {
  std::optional<Norm> q_norm, k_norm;  // RMSNorm of each head before RoPE, [head_dim]
  std::optional<Rope> rope;
  std::optional<Tensor> position_bias;  // float32[heads, 2 L - 1], by distance
  float k_scale = 1, v_scale = 1;       // of a cache in float8
};

class Attention : public Sublayer {
 public:
  // The rows of qkv are q | k | v. Throws Error if weights and options do not fit.
  Attention(std::shared_ptr<const Linear> qkv, std::shared_ptr<const Linear> output,
            AttentionOptions options);

  void compute(const Tensor& context, const Norm* norm, Pass& pass) const override;
  int64_t scratch_width() const override { return qkv_->out_features(); }
  bool attends() const override { return true; }

 private:
  AttentionSpec spec() const {
    return {options_.heads,   options_.scale,  options_.mask, options_.soft_cap, {},
            options_.k_scale, options_.v_scale};
  }
  const Tensor* position_bias() const {
    return options_.position_bias ? &*options_.position_bias : nullptr;
  }
  void attend(const Tensor& context, const Tensor& qkv, const Pass& pass) const;
  // Computes attention for the output tokens only. Throws Error if what a token attends to depends
  // on its position.
  void attend_outputs(const Tensor& context, const Tensor& qkv, const Pass& pass) const;
  void attend_cached(const Tensor& context, const Tensor& qkv, Pass& pass) const;

  std::shared_ptr<const Linear> qkv_;
  AttentionOptions options_;
  int64_t head_dim_;
};

}  // namespace fusewire::layers
