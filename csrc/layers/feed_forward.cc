#include "layers/feed_forward.h"

#include "layers/sublayer_shapes.h"
#include "ops/ops.h"

namespace fusewire::layers {

FeedForward::FeedForward(std::shared_ptr<const Linear> intermediate,
                         std::shared_ptr<const Linear> output, Activation activation, bool gated)
    : Sublayer(std::move(output)),
      intermediate_(std::move(intermediate)),
      activation_(activation),
      gated_(gated) {
  expect_output("FeedForward", this->output().shape(), intermediate_->in_features(),
                activated_width(intermediate_->out_features(), gated_));
}

void FeedForward::compute(const Tensor& inner, const Norm* norm, Pass& pass) const {
  if (activated_late()) return pass.project(inner, norm, *intermediate_, Activation::kNone);
  if (!gated_) return pass.project(inner, norm, *intermediate_, activation_);
  const Matrix both = pass.matrix(intermediate_->out_features());
  pass.project_gated(inner, both, norm, *intermediate_, activation_);
}

void FeedForward::finish(const Tensor& out, const Tensor& inner, const Tensor* residual,
                         const Stream& stream) const {
  if (!activated_late()) return Sublayer::finish(out, inner, residual, stream);
  ops::activated_linear(out, inner, activation_, gated_, output(), residual, stream);
}

}  // namespace fusewire::layers
