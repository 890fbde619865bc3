#include "layers/block.h"

#include <utility>

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

void Norm::project(const Tensor& out, const Tensor& normed, const Tensor& x, const Linear& linear,
                   Activation activation, const Stream& stream) const {
  ops::norm_linear(out, normed, x, weight, bias ? &*bias : nullptr, eps, kind == Kind::kLayerNorm,
                   linear, activation, stream);
}

void Pass::project(const Tensor& out, const Norm* norm, const Linear& linear,
                   Activation activation) {
  const Norm* last = std::exchange(pending, nullptr);
  if (!norm) {
    return last ? last->project(out, x, x, linear, activation, stream)
                : ops::linear(out, x, linear, activation, stream);
  }
  if (last) last->apply(x, x, stream);
  const Matrix normed = matrix(x.shape[1]);
  norm->project(out, normed, x, linear, activation, stream);
}

void Pass::project_gated(const Tensor& out, const Tensor& both, const Norm* norm,
                         const Linear& linear, Activation activation) {
  if (!linear.gates()) {  // the product may be fused with the norm
    project(both, norm, linear, Activation::kNone);
    return ops::gate(out, both, activation, stream);
  }
  if (const Norm* last = std::exchange(pending, nullptr)) last->apply(x, x, stream);
  if (!norm) return ops::gated_linear(out, both, x, linear, activation, stream);
  const Matrix normed = matrix(x.shape[1]);
  norm->apply(normed, x, stream);
  ops::gated_linear(out, both, normed, linear, activation, stream);
}

void Sublayer::finish(const Tensor& out, const Tensor& inner, const Tensor* residual,
                      const Stream& stream) const {
  if (residual) {
    ops::linear_add(out, inner, output(), *residual, stream);
  } else {
    ops::linear(out, inner, output(), Activation::kNone, stream);
  }
}

void Block::compute(const Tensor& inner, Pass& pass) const {
  sublayer->compute(inner, input_norm ? &*input_norm : nullptr, pass);
}

void Block::add(const Tensor& inner, Pass& pass) const {
  const Tensor& x = pass.x;
  if (output_norm) {
    const Matrix result = pass.matrix(x.shape[1]);
    sublayer->finish(result, inner, nullptr, pass.stream);
    ops::rms_norm_add(x, result, x, output_norm->weight, output_norm->eps, pass.stream);
  } else {
    sublayer->finish(x, inner, &x, pass.stream);
  }
  if (residual_norm) pass.pending = &*residual_norm;
}

}  // namespace fusewire::layers
