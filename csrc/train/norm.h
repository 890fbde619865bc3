// A norm over the features of each row, forward and backward.
#pragma once

#include "train/pass.h"

namespace fusewire::train {

struct Norm {
  layers::Norm::Kind kind;
  Parameter weight;
  std::optional<Parameter> bias;  // of a LayerNorm
  float eps;

  void forward(const Tensor& y, const Tensor& x, const Pass& pass) const;
  // dx = the gradient of its input x [+ residual]; dx may be dy or residual, residual may be null.
  // Mean and deviation are computed again.
  void backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor* residual,
                const Pass& pass) const;
  // Of each head, in place; an RMSNorm.
  void forward_heads(const Tensor& x, const Pass& pass) const;
  void backward_heads(const Tensor& dx, const Tensor& x, const Pass& pass) const;

  // Error when a parameter is not in the flat buffer.
  void expect_within(const Tensor& flat) const;
};

}  // namespace fusewire::train
