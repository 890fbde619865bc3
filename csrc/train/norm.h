// A norm over the features of each row, forward and backward.
#pragma once

#include <memory>

#include "train/pass.h"

namespace fusewire::train {

// 1 + a weight whose difference from 1 is the parameter (Gemma): computed anew for another version
// of the parameters, or another element type. Only one pass of a stack runs at a time.
class OnePlus {
 public:
  // In a dry run: without memory.
  Tensor of(const Parameter& parameter, const Pass& pass);

 private:
  std::shared_ptr<void>
      block_;  // ones, a sum as a kernel leaves it, and the weight; null: none yet
  DType dtype_ = DType::kFloat32;
  uint64_t version_ = 0;
};

struct Norm {
  layers::Norm::Kind kind;
  Parameter weight;
  std::optional<Parameter> bias;  // of a LayerNorm
  float eps;
  std::shared_ptr<OnePlus> one_plus;  // null: the parameter is the weight itself

  void forward(const Tensor& y, const Tensor& x, const Pass& pass) const;
  // y = norm(x) + residual, which may be y; an RMSNorm.
  void forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                   const Pass& pass) const;
  // dx = the gradient of its input x [+ residual]; dx may be dy or residual, residual may be null.
  // Mean and deviation are computed again.
  void backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor* residual,
                const Pass& pass) const;
  // Of each head, in place; an RMSNorm.
  void forward_heads(const Tensor& x, const Pass& pass) const;
  void backward_heads(const Tensor& dx, const Tensor& x, const Pass& pass) const;

  // Error when a parameter is not in the flat buffer.
  void expect_within(const Tensor& flat) const;

 private:
  Tensor weights(const Pass& pass) const;
};

}  // namespace fusewire::train
