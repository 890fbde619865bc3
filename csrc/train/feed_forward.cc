#include "train/feed_forward.h"

#include "layers/sublayer_shapes.h"
#include "ops/ops.h"

namespace fusewire::train {

FeedForward::FeedForward(std::shared_ptr<const Linear> intermediate,
                         std::shared_ptr<const Linear> output, Activation activation, bool gated,
                         float dropout)
    : Sublayer(std::move(output)),
      intermediate_(std::move(intermediate)),
      activation_(activation),
      gated_(gated),
      dropout_(dropout) {
  layers::expect_output("FeedForward", this->output().shape(), intermediate_->in_features(),
                        layers::activated_width(intermediate_->out_features(), gated_));
  expect_probability("FeedForward", dropout);
}

void FeedForward::drop_numbers(const Tensor& inner, const Pass& pass) const {
  const Dropout dropout = pass.dropout_inside(dropout_);
  if (dropout.probability == 0) return;
  ops::drop_and_add(inner, nullptr, inner, nullptr, dropout, false, pass.stream);
}

Matrix FeedForward::activated(const Tensor& projected, const Pass& pass) const {
  Matrix inner = pass.matrix(output().in_features());
  if (gated_) {
    ops::gate(inner, projected, activation_, pass.stream);
  } else {
    ops::activate(inner, projected, activation_, pass.stream);
  }
  drop_numbers(inner, pass);
  return inner;
}

// ReLU's slope is 1 where its result is above 0, also where dropout has scaled that. Of an element
// that was dropped the slope counts for nothing, as its gradient is dropped as well.
bool FeedForward::keeps_result() const {
  return !gated_ && activation_ == Activation::kRelu;
}

void FeedForward::forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const {
  if (keeps_result() || (!gated_ && !pass.saves)) {  // the activation is fused into the product
    a.inner = pass.matrix(output().in_features());
    intermediate_->forward(*a.inner, x, activation_, pass);
    return drop_numbers(*a.inner, pass);
  }
  a.projected = pass.matrix(intermediate_->out_features());
  intermediate_->forward(*a.projected, x, Activation::kNone, pass);
  a.inner = activated(*a.projected, pass);
  if (!pass.saves) a.projected.reset();
}

void FeedForward::drop(SublayerActivations& a, const Pass& pass) const {
  const bool made_again = pass.recompute >= Recompute::kActivation && !keeps_result();
  if (!pass.saves || made_again) a.inner.reset();
}

Value FeedForward::backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                            const Pass& pass) const {
  if (!a.inner) a.inner = activated(*a.projected, pass);
  output().backward_weight(dz, *a.inner, pass);
  if (keeps_result()) a.projected = std::move(a.inner);
  a.inner.reset();
  Matrix dinner = pass.matrix(output().in_features());
  output().backward_input(dinner, dz, nullptr, pass);
  drop_numbers(dinner, pass);
  std::optional<Tensor> dbias;
  if (gated_) {
    ops::gate_backward(*a.projected, dinner, *a.projected, activation_, pass.stream);
  } else {
    dbias = intermediate_->bias_gradient(pass);
    ops::activate_backward(dinner, dbias ? &*dbias : nullptr, dinner, *a.projected, activation_,
                           pass.gradients.accumulate, pass.stream);
    a.projected = std::move(dinner);
  }
  const Tensor& dprojected = *a.projected;
  if (!dbias) intermediate_->backward_bias(dprojected, pass);
  intermediate_->backward_weight(dprojected, x, pass);
  Value dx = sum ? Value(*sum) : Value(pass.matrix(x.shape[1]));
  intermediate_->backward_input(dx, dprojected, sum, pass);
  return dx;
}

}  // namespace fusewire::train
