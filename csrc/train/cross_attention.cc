#include "train/cross_attention.h"

#include "core/error.h"
#include "layers/sublayer_shapes.h"
#include "ops/ops.h"

namespace fusewire::train {

CrossAttention::CrossAttention(std::shared_ptr<const Linear> q, std::shared_ptr<const Linear> kv,
                               std::shared_ptr<const Linear> output, int64_t heads, float scale,
                               float dropout)
    : Sublayer(std::move(output)),
      q_(std::move(q)),
      kv_(std::move(kv)),
      heads_(heads),
      scale_(scale),
      dropout_(dropout) {
  layers::complete_cross(heads_, scale_, q_->shape());
  if (kv_->out_features() != 2 * q_->out_features()) {
    fail("CrossAttention: kv: got ", kv_->out_features(), " rows, wanted ", 2 * q_->out_features(),
         ", as many of k and of v as of q");
  }
  layers::expect_output("CrossAttention", this->output().shape(), q_->in_features(),
                        q_->out_features());
  expect_probability("CrossAttention", dropout);
}

void CrossAttention::forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const {
  if (!pass.source) {
    fail("CrossAttention: source: got none, wanted the encoder's output for each sequence");
  }
  a.projected = pass.matrix(q_->out_features());
  q_->forward(*a.projected, x, Activation::kNone, pass);
  a.source = pass.source_matrix(kv_->out_features());
  kv_->forward(*a.source, pass.source->x, Activation::kNone, pass);
  a.inner = pass.matrix(q_->out_features());
  if (pass.saves) a.log_sum_exp = pass.scratch.tensor({heads_, pass.batch.tokens()});
  ops::attention(*a.inner, *a.projected, keys(*a.source), values(*a.source), pass.batch,
                 pass.source->batch, spec(pass), nullptr,
                 a.log_sum_exp ? &**a.log_sum_exp : nullptr, pass.stream);
  if (pass.saves) return;
  a.projected.reset();
  a.source.reset();
}

void CrossAttention::drop(SublayerActivations& a, const Pass& pass) const {
  if (!pass.saves) a.inner.reset();
}

Value CrossAttention::backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                               const Pass& pass) const {
  output().backward_weight(dz, *a.inner, pass);
  const Matrix dq = pass.matrix(q_->out_features());
  {
    const Matrix dkv = pass.source_matrix(kv_->out_features());
    {
      const Matrix dinner = pass.matrix(output().in_features());
      output().backward_input(dinner, dz, nullptr, pass);
      ops::attention_backward(dq, keys(dkv), values(dkv), nullptr, dinner, *a.inner, *a.projected,
                              keys(*a.source), values(*a.source), pass.batch, pass.source->batch,
                              spec(pass), nullptr, **a.log_sum_exp, pass.stream);
    }
    a = {};
    kv_->backward_parameters(dkv, pass.source->x, pass);
    if (const auto& dsource = pass.gradients.source) {
      kv_->backward_input(*dsource, dkv, &*dsource, pass);
    }
  }
  q_->backward_parameters(dq, x, pass);
  Value dx = sum ? Value(*sum) : Value(pass.matrix(x.shape[1]));
  q_->backward_input(dx, dq, sum, pass);
  return dx;
}

void CrossAttention::expect_within(const Tensor& flat) const {
  q_->expect_within(flat);
  kv_->expect_within(flat);
}

}  // namespace fusewire::train
