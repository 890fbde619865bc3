// A norm over the features of each row, forward and backward.
#pragma once

#include <memory>

#include "train/pass.h"

namespace fusewire::train {

// A weight 1 + parameter (Gemma): computed again for another version of the parameters, or another
// element type. Only one pass of a stack runs at a time.
class OnePlus {
 public:
  // Returns the weight; in a dry run a tensor without memory.
  Tensor of(const Parameter& parameter, const Pass& pass);

 private:
  std::shared_ptr<void>
      block_;  // ones, the sum that a kernel writes, and the weight; null: none yet
  DType dtype_ = DType::kFloat32;
  uint64_t version_ = 0;
};

struct Norm {
  layers::Norm::Kind kind;
  Parameter weight;
  std::optional<Parameter> bias;  // only for a LayerNorm
  float eps;
  std::shared_ptr<OnePlus> one_plus;  // null: the parameter is the weight itself

  void forward(const Tensor& y, const Tensor& x, const Pass& pass) const;
  // Computes y = norm(x) + residual, which may be y, for an RMSNorm.
  void forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                   const Pass& pass) const;
  // Computes dx = the gradient of its input x [+ residual]; dx may be dy or residual, residual may
  // be null. The mean and deviation are computed again.
  void backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor* residual,
                const Pass& pass) const;
  // Returns whether drop_and_forward and backward_and_drop support norms of this kind.
  bool drops() const { return kind != layers::Norm::Kind::kRmsNorm; }
  // Computes sum = dropout(sum) + x, in place, and y = norm(sum).
  void drop_and_forward(const Tensor& y, const Tensor& sum, const Tensor& x, const Dropout& dropout,
                        const Pass& pass) const;
  // The backward pass of drop_and_forward: d, the gradient of y, is replaced by that of x, and
  // `sum` by the gradient of its value before drop_and_forward. dbias, which may be null, receives
  // the sums of the columns of that, or they are added to it, as to all gradients.
  void backward_and_drop(const Tensor& d, const Tensor& sum, const Tensor* dbias,
                         const Dropout& dropout, const Pass& pass) const;
  // Normalises each head in place, for an RMSNorm.
  void forward_heads(const Tensor& x, const Pass& pass) const;
  void backward_heads(const Tensor& dx, const Tensor& x, const Pass& pass) const;

  // Throws Error if a parameter is not in the flat buffer.
  void expect_within(const Tensor& flat) const;

 private:
  Tensor weights(const Pass& pass) const;
};

}  // namespace fusewire::train
