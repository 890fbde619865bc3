#include "layers/block.h"

#include "ops/ops.h"

namespace fusewire::layers {

Norm::Kind norm_named(std::string_view kind, bool biased) {
  if (kind == "layer_norm") return Norm::Kind::kLayerNorm;
  if (kind != "rms_norm") fail("Norm: kind: got '", kind, "', wanted layer_norm or rms_norm");
  if (biased) fail("Norm: bias: got one for an rms_norm, wanted none");
  return Norm::Kind::kRmsNorm;
}

void Norm::apply(const Tensor& out, const Tensor& x, const Stream& stream) const {
  if (kind == Kind::kRmsNorm) {
    ops::rms_norm(out, x, weight, eps, stream);
  } else {
    ops::layer_norm(out, x, weight, bias ? &*bias : nullptr, eps, stream);
  }
}

void Pass::project(const Tensor& out, const Norm* norm, const Linear& linear,
                   Activation activation) const {
  if (!norm) return ops::linear(out, x, linear, activation, stream);
  const Matrix normed = matrix(x.shape[1]);
  norm->apply(normed, x, stream);
  ops::linear(out, normed, linear, activation, stream);
}

void Block::compute(const Tensor& inner, Pass& pass) const {
  sublayer->compute(inner, input_norm ? &*input_norm : nullptr, pass);
}

void Block::add(const Tensor& inner, const Pass& pass) const {
  const Tensor& x = pass.x;
  if (output_norm) {
    const Matrix result = pass.matrix(x.shape[1]);
    ops::linear(result, inner, sublayer->output(), Activation::kNone, pass.stream);
    ops::rms_norm_add(x, result, x, output_norm->weight, output_norm->eps, pass.stream);
  } else {
    ops::linear_add(x, inner, sublayer->output(), x, pass.stream);
  }
  if (residual_norm) residual_norm->apply(x, x, pass.stream);
}

}  // namespace fusewire::layers
