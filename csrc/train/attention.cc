#include "train/attention.h"

#include "core/error.h"
#include "core/runtime.h"
#include "ops/ops.h"

namespace fusewire::train {
namespace {

// Copies between two scratch matrices of the same row stride.
void copy(const Tensor& to, const Tensor& from, const Stream& stream) {
  if (stream.recording) return;
  const size_t bytes = static_cast<size_t>(from.shape[0] * from.row_stride) * size_of(from.dtype);
  runtime(stream.device.type).copy(to.data, from.data, bytes, stream);
}

}  // namespace

Attention::Attention(std::shared_ptr<const Linear> qkv, std::shared_ptr<const Linear> output,
                     AttentionOptions options)
    : Sublayer(std::move(output)), qkv_(std::move(qkv)), options_(std::move(options)) {
  head_dim_ = layers::complete(options_, qkv_->shape());
  layers::expect_output("Attention", this->output().shape(), qkv_->in_features(),
                        options_.heads * head_dim_);
  expect_probability("Attention", options_.dropout);
  for (const auto* norm : {&options_.q_norm, &options_.k_norm}) {
    if (*norm) layers::expect_head_norm((*norm)->kind, (*norm)->weight.shape, head_dim_);
  }
}

Attention::Heads Attention::split(const Tensor& qkv) const {
  const int64_t q = options_.heads * head_dim_, k = options_.kv_heads * head_dim_;
  return {qkv.columns(0, q), qkv.columns(q, k), qkv.columns(q + k, k)};
}

AttentionSpec Attention::spec(const Pass& pass) const {
  const AttentionOptions& o = options_;
  return {o.heads, o.scale, o.mask, o.soft_cap, pass.dropout_inside(o.dropout)};
}

const Tensor* Attention::bias(const Pass& pass) const {
  if (!options_.position_bias) return nullptr;
  const auto number = static_cast<size_t>(*options_.position_bias);
  if (number >= pass.biases.size()) {
    fail("Attention: biases: got ", pass.biases.size(), ", wanted one for position_bias ", number);
  }
  return &pass.biases[number];
}

void Attention::rotate(const Tensor& qkv, const Tensor& sin, const Pass& pass) const {
  if (!pass.positions) {
    fail("Attention: positions: got none, wanted int32[tokens] for its rotary angles");
  }
  ops::rotary(qkv, *pass.positions, options_.rope->cos, sin, options_.heads, options_.kv_heads,
              pass.stream);
}

void Attention::forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const {
  const AttentionOptions& o = options_;
  a.projected = pass.matrix(qkv_->out_features());
  qkv_->forward(*a.projected, x, Activation::kNone, pass);
  if (pass.saves && (o.q_norm || o.k_norm)) {  // their backward reads what they overwrite
    a.attended = pass.matrix(qkv_->out_features());
    copy(*a.attended, *a.projected, pass.stream);
  }
  const Tensor& qkv = a.attended ? *a.attended : *a.projected;
  const Heads heads = split(qkv);
  if (o.q_norm) o.q_norm->forward_heads(heads.q, pass);
  if (o.k_norm) o.k_norm->forward_heads(heads.k, pass);
  if (o.rope) rotate(qkv, o.rope->sin, pass);
  a.inner = pass.matrix(o.heads * head_dim_);
  if (pass.saves) a.log_sum_exp = pass.scratch.tensor({o.heads, pass.batch.tokens()});
  ops::attention(*a.inner, heads.q, heads.k, heads.v, pass.batch, pass.batch, spec(pass),
                 bias(pass), a.log_sum_exp ? &**a.log_sum_exp : nullptr, pass.stream);
  if (!pass.saves) a.projected.reset();
}

void Attention::drop(SublayerActivations& a, const Pass& pass) const {
  if (!pass.saves) a.inner.reset();
}

void Attention::backward_heads(const Heads& d, const Tensor& dinner, const SublayerActivations& a,
                               const Pass& pass) const {
  const Heads heads = split(a.attended ? *a.attended : *a.projected);
  const Tensor* const bias = this->bias(pass);
  const auto backward = [&](const Tensor* dbias) {
    ops::attention_backward(d.q, d.k, d.v, dbias, dinner, *a.inner, heads.q, heads.k, heads.v,
                            pass.batch, pass.batch, spec(pass), bias, **a.log_sum_exp, pass.stream);
  };
  if (!bias) return backward(nullptr);
  // The row is part of the plan whether the gradient is wanted or not, because the plan is made
  // before this is known.
  const ScratchTensor row = pass.scratch.tensor({1, bias->shape.elements()});
  const auto& sums = pass.gradients.biases;
  const auto number = static_cast<size_t>(*options_.position_bias);
  if (number >= sums.size() || !sums[number]) return backward(nullptr);
  const Tensor &of_layer = row, &sum = *sums[number];
  const Tensor dbias(of_layer.data, bias->shape, of_layer.dtype, of_layer.device);
  backward(&dbias);
  const Tensor numbers(sum.data, {sum.shape.elements()}, sum.dtype, sum.device);
  ops::column_sums(numbers, of_layer, true, pass.stream);
}

Value Attention::backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                          const Pass& pass) const {
  const AttentionOptions& o = options_;
  output().backward_weight(dz, *a.inner, pass);
  const Matrix dqkv = pass.matrix(qkv_->out_features());
  const Heads d = split(dqkv);
  {
    const Matrix dinner = pass.matrix(output().in_features());
    output().backward_input(dinner, dz, nullptr, pass);
    backward_heads(d, dinner, a, pass);
  }
  a.inner.reset();
  a.log_sum_exp.reset();
  if (o.rope) rotate(dqkv, o.negative_sin, pass);
  const Heads raw = split(*a.projected);
  if (o.q_norm) o.q_norm->backward_heads(d.q, raw.q, pass);
  if (o.k_norm) o.k_norm->backward_heads(d.k, raw.k, pass);
  a.attended.reset();
  a.projected.reset();
  qkv_->backward_parameters(dqkv, x, pass);
  Value dx = sum ? Value(*sum) : Value(pass.matrix(x.shape[1]));
  qkv_->backward_input(dx, dqkv, sum, pass);
  return dx;
}

void Attention::expect_within(const Tensor& flat) const {
  qkv_->expect_within(flat);
  if (options_.q_norm) options_.q_norm->expect_within(flat);
  if (options_.k_norm) options_.k_norm->expect_within(flat);
}

}  // namespace fusewire::train
