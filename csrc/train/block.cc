#include "train/block.h"

#include "core/error.h"
#include "ops/ops.h"

namespace fusewire::train {

void expect_probability(const char* part, float probability) {
  if (!(probability >= 0 && probability < 1)) {
    fail(part, ": dropout: got ", probability, ", wanted a probability of at least 0, below 1");
  }
}

Block::Block(std::shared_ptr<const Sublayer> sublayer, std::optional<Norm> input_norm,
             std::optional<Norm> output_norm, std::optional<Norm> residual_norm, float dropout)
    : sublayer_(std::move(sublayer)),
      input_norm_(std::move(input_norm)),
      output_norm_(std::move(output_norm)),
      residual_norm_(std::move(residual_norm)),
      dropout_(dropout) {
  expect_probability("Block", dropout);
  if (output_norm_ && output_norm_->kind != layers::Norm::Kind::kRmsNorm) {
    fail("Block: output_norm: got a layer_norm, wanted an rms_norm, added as it is made");
  }
  if (output_norm_ && dropout > 0) {
    fail("Block: dropout: got ", dropout, " with an output_norm, wanted 0");
  }
}

void Block::compute(const Tensor& x, BlockActivations& a, const Pass& pass) const {
  if (!input_norm_) return sublayer_->forward(x, a.sublayer, pass);
  a.normed = pass.matrix(x.shape[1]);
  input_norm_->forward(*a.normed, x, pass);
  sublayer_->forward(*a.normed, a.sublayer, pass);
  if (!pass.saves || pass.recompute >= Recompute::kNorm) a.normed.reset();
}

void Block::project(BlockActivations& a, const Pass& pass) const {
  a.result = pass.matrix(hidden());
  sublayer_->output().forward(*a.result, *a.sublayer.inner, Activation::kNone, pass);
}

void Block::add(const Tensor& sum, const Tensor& x, BlockActivations& a, const Pass& pass) const {
  if (output_norm_) {
    project(a, pass);
    output_norm_->forward_add(sum, *a.result, x, pass);
    if (!pass.saves) a.result.reset();
    return;
  }
  const Dropout dropout = pass.dropout_after(dropout_);
  const Tensor& inner = *a.sublayer.inner;
  if (dropout.probability > 0) {
    sublayer_->output().forward(sum, inner, Activation::kNone, pass);
    ops::drop_and_add(sum, nullptr, sum, &x, dropout, false, pass.stream);
  } else {
    sublayer_->output().forward_add(sum, inner, x, pass);
  }
}

Value Block::forward(const Tensor& x, const Tensor& residual, BlockActivations& a,
                     const Tensor* out, const Pass& pass) const {
  compute(x, a, pass);
  const auto result = [&] { return out ? Value(*out) : Value(pass.matrix(x.shape[1])); };
  if (!residual_norm_) {
    Value sum = result();
    add(sum, residual, a, pass);
    sublayer_->drop(a.sublayer, pass);
    return sum;
  }
  a.sum = pass.matrix(x.shape[1]);
  const Dropout dropout = pass.dropout_after(dropout_);
  const bool drops = dropout.probability > 0 && residual_norm_->drops();
  if (drops) {
    sublayer_->output().forward(*a.sum, *a.sublayer.inner, Activation::kNone, pass);
  } else {
    add(*a.sum, residual, a, pass);
  }
  sublayer_->drop(a.sublayer, pass);
  Value y = result();
  if (drops) {
    residual_norm_->drop_and_forward(y, *a.sum, residual, dropout, pass);
  } else {
    residual_norm_->forward(y, *a.sum, pass);
  }
  return y;
}

void Block::recompute(const Tensor& x, BlockActivations& a, const Pass& pass) const {
  compute(x, a, pass);
  if (!residual_norm_) {
    if (output_norm_) project(a, pass);
    return;
  }
  a.sum = pass.matrix(x.shape[1]);
  add(*a.sum, x, a, pass);
}

void Block::backward(const Tensor& d, const Tensor& dout, const Tensor& x, BlockActivations a,
                     const Pass& pass) const {
  const Dropout dropout = pass.dropout_after(dropout_);
  const bool drops = dropout.probability > 0;
  const bool with_norm = drops && residual_norm_ && residual_norm_->drops();
  Value dz(dout);
  std::optional<Tensor> dbias;  // computed with dz
  if (drops) dbias = sublayer_->output().bias_gradient(pass);
  const Tensor* const sums = dbias ? &*dbias : nullptr;
  if (with_norm) {
    residual_norm_->backward_and_drop(d, *a.sum, sums, dropout, pass);
    dz = Value(std::move(*a.sum));
  } else if (residual_norm_) {
    residual_norm_->backward(d, d, *a.sum, nullptr, pass);
  }
  a.sum.reset();
  if (output_norm_) {
    dz = Value(pass.matrix(d.shape[1]));
    output_norm_->backward(dz, dout, *a.result, nullptr, pass);
    a.result.reset();
  }
  if (drops && !with_norm) {
    dz = Value(pass.matrix(d.shape[1]));
    ops::drop_and_add(dz, sums, dout, nullptr, dropout, pass.gradients.accumulate, pass.stream);
  }
  if (!dbias) sublayer_->output().backward_bias(dz, pass);
  if (!input_norm_) {
    sublayer_->backward(std::move(dz), x, std::move(a.sublayer), &d, pass);
    return;
  }
  if (!a.normed) {
    a.normed = pass.matrix(x.shape[1]);
    input_norm_->forward(*a.normed, x, pass);
  }
  const Value dnormed =
      sublayer_->backward(std::move(dz), *a.normed, std::move(a.sublayer), nullptr, pass);
  input_norm_->backward(d, dnormed, x, &d, pass);
}

void Block::expect_within(const Tensor& flat) const {
  sublayer_->expect_within(flat);
  sublayer_->output().expect_within(flat);
  for (const auto* norm : {&input_norm_, &output_norm_, &residual_norm_}) {
    if (*norm) (*norm)->expect_within(flat);
  }
}

}  // namespace fusewire::train
