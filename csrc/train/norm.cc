#include "train/norm.h"

#include "ops/ops.h"

namespace fusewire::train {

void Norm::forward(const Tensor& y, const Tensor& x, const Pass& pass) const {
  std::optional<Tensor> added;
  if (bias) added = bias->of(pass.parameters);
  layers::Norm{kind, weight.of(pass.parameters), added, eps}.apply(y, x, pass.stream);
}

void Norm::backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor* residual,
                    const Pass& pass) const {
  const Gradients& g = pass.gradients;
  const Tensor scale = weight.of(pass.parameters), dscale = weight.of(g.flat);
  if (kind == layers::Norm::Kind::kRmsNorm) {
    ops::rms_norm_backward(dx, dscale, dy, x, scale, residual, eps, g.accumulate, pass.stream);
    return;
  }
  const Tensor dbias = bias ? bias->of(g.flat) : Tensor();
  ops::layer_norm_backward(dx, dscale, bias ? &dbias : nullptr, dy, x, scale, residual, eps,
                           g.accumulate, pass.stream);
}

void Norm::forward_heads(const Tensor& x, const Pass& pass) const {
  ops::rms_norm_heads(x, weight.of(pass.parameters), eps, pass.stream);
}

void Norm::backward_heads(const Tensor& dx, const Tensor& x, const Pass& pass) const {
  const Gradients& g = pass.gradients;
  ops::rms_norm_heads_backward(dx, weight.of(g.flat), x, weight.of(pass.parameters), eps,
                               g.accumulate, pass.stream);
}

void Norm::expect_within(const Tensor& flat) const {
  train::expect_within(weight, flat);
  if (bias) train::expect_within(*bias, flat);
}

}  // namespace fusewire::train
