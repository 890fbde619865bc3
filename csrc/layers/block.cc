#include "layers/block.h"

#include "ops/ops.h"

namespace fusewire::layers {

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

void Sublayer::expect_output(const char* sublayer, int64_t hidden, int64_t inner_width) const {
  if (output_->out_features() != hidden || output_->in_features() != inner_width) {
    fail(sublayer, ": output: got Linear[", output_->out_features(), ", ", output_->in_features(),
         "], wanted [", hidden, ", ", inner_width, "], the width of x and what is computed of it");
  }
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
