#include "train/linear.h"

#include "core/error.h"
#include "ops/ops.h"

namespace fusewire::train {

Linear::Linear(Parameter weight, std::optional<Parameter> bias, bool transposed)
    : weight_(weight), bias_(bias), transposed_(transposed) {
  if (weight_.shape.rank() != 2) {
    fail("Linear: weight: got ", weight_.shape.text(), ", wanted a matrix");
  }
  in_features_ = weight_.shape[transposed ? 0 : 1];
  out_features_ = weight_.shape[transposed ? 1 : 0];
  if (bias_ && bias_->shape != Shape{out_features_}) {
    fail("Linear: bias: got ", bias_->shape.text(), ", wanted [", out_features_,
         "], the weight's out_features");
  }
}

void Linear::expect_within(const Tensor& flat) const {
  train::expect_within(weight_, flat);
  if (bias_) train::expect_within(*bias_, flat);
}

const fusewire::Linear& Linear::packed(Packed& panels, bool bias, bool transposed,
                                       const Pass& pass) const {
  const DType dtype = pass.parameters.dtype;
  const bool known = panels.linear && panels.dtype == dtype;
  if (known && panels.version == pass.version) return *panels.linear;
  const Tensor weight = weight_.of(pass.parameters);
  const Tensor biases = bias && bias_ ? bias_->of(pass.parameters) : Tensor();
  const Tensor* const given = bias && bias_ ? &biases : nullptr;
  if (known) {
    panels.linear->refresh(weight, given, pass.stream);
  } else {
    panels.linear = std::make_unique<fusewire::Linear>(weight, given, pass.stream, transposed);
  }
  panels.dtype = dtype;
  panels.version = pass.version;
  return *panels.linear;
}

void Linear::forward(const Tensor& y, const Tensor& x, Activation activation,
                     const Pass& pass) const {
  ops::linear(y, x, packed(forward_, true, transposed_, pass), activation, pass.stream);
}

void Linear::forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                         const Pass& pass) const {
  ops::linear_add(y, x, packed(forward_, true, transposed_, pass), residual, pass.stream);
}

void Linear::backward_parameters(const Tensor& dy, const Tensor& x, const Pass& pass) const {
  const Gradients& g = pass.gradients;
  if (bias_) ops::column_sums(bias_->of(g.flat), dy, g.accumulate, pass.stream);
  if (g.frozen && g.frozen->count(weight_.offset)) return;
  const Tensor &rows = transposed_ ? x : dy, &cols = transposed_ ? dy : x;
  ops::linear_backward_weight(weight_.of(g.flat), rows, cols, g.accumulate, pass.stream);
}

void Linear::backward_input(const Tensor& dx, const Tensor& dy, const Tensor* residual,
                            const Pass& pass) const {
  const fusewire::Linear& transpose = packed(backward_, false, !transposed_, pass);
  if (residual) {
    ops::linear_add(dx, dy, transpose, *residual, pass.stream);
  } else {
    ops::linear(dx, dy, transpose, Activation::kNone, pass.stream);
  }
}

}  // namespace fusewire::train
