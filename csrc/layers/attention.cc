#include "layers/attention.h"

#include "layers/planes.h"
#include "ops/ops.h"

namespace fusewire::layers {

Attention::Attention(std::shared_ptr<const Linear> qkv, std::shared_ptr<const Linear> output,
                     AttentionOptions options)
    : Sublayer(std::move(output)), qkv_(std::move(qkv)), options_(std::move(options)) {
  head_dim_ = complete(options_, qkv_->shape());
  expect_output("Attention", this->output().shape(), qkv_->in_features(),
                options_.heads * head_dim_);
  for (const auto* norm : {&options_.q_norm, &options_.k_norm}) {
    if (*norm) expect_head_norm((*norm)->kind, (*norm)->weight.shape, head_dim_);
  }
}

void Attention::compute(const Tensor& context, const Norm* norm, Pass& pass) const {
  const AttentionOptions& o = options_;
  const Matrix qkv = pass.matrix(qkv_->out_features());
  pass.project(qkv, norm, *qkv_, Activation::kNone);
  const int64_t q_width = o.heads * head_dim_, k_width = o.kv_heads * head_dim_;
  if (o.q_norm) {
    ops::rms_norm_heads(qkv.columns(0, q_width), o.q_norm->weight, o.q_norm->eps, pass.stream);
  }
  if (o.k_norm) {
    ops::rms_norm_heads(qkv.columns(q_width, k_width), o.k_norm->weight, o.k_norm->eps,
                        pass.stream);
  }
  if (o.rope && !pass.inputs.positions) {
    fail("Attention: positions: got none, wanted int32[tokens] for its rotary angles");
  }
  if (pass.inputs.paged) {
    attend_cached(context, qkv, pass);
  } else {
    attend(context, qkv, pass);
  }
}

void Attention::attend(const Tensor& context, const Tensor& qkv, const Pass& pass) const {
  const AttentionOptions& o = options_;
  if (o.rope) {
    ops::rotary(qkv, *pass.inputs.positions, o.rope->cos, o.rope->sin, o.heads, o.kv_heads,
                pass.stream);
  }
  if (pass.outputs) return attend_outputs(context, qkv, pass);
  const int64_t q_width = o.heads * head_dim_, k_width = o.kv_heads * head_dim_;
  ops::attention(context, qkv.columns(0, q_width), qkv.columns(q_width, k_width),
                 qkv.columns(q_width + k_width, k_width), pass.inputs.batch, pass.inputs.batch,
                 spec(), position_bias(), nullptr, pass.stream);
}

void Attention::attend_outputs(const Tensor& context, const Tensor& qkv, const Pass& pass) const {
  const AttentionMask& mask = options_.mask;
  if (mask.left < kUnlimited || mask.right < kUnlimited || options_.position_bias) {
    fail(
        "Attention: outputs: got some tokens of a sequence for an attention with a window or a "
        "position_bias, wanted one in which a token sees all others alike");
  }
  const int64_t q_width = options_.heads * head_dim_, k_width = options_.kv_heads * head_dim_;
  const Matrix q(pass.scratch, pass.outputs->tokens.shape[0], q_width, qkv.dtype, pass.stream);
  ops::gather_rows(q, qkv.columns(0, q_width), pass.outputs->tokens, pass.stream);
  ops::attention(context, q, qkv.columns(q_width, k_width), qkv.columns(q_width + k_width, k_width),
                 pass.outputs->batch, pass.inputs.batch, spec(), nullptr, nullptr, pass.stream);
}

void Attention::attend_cached(const Tensor& context, const Tensor& qkv, Pass& pass) const {
  const AttentionOptions& o = options_;
  const PagedBatch& batch = *pass.inputs.paged;
  const KeyValuePlanes planes = planes_of("Attention", *pass.inputs.planes, pass.attention++,
                                          {o.kv_heads, batch.page_size(), head_dim_});
  ops::cached_attention(context, qkv, planes.keys, planes.values, batch, spec(), position_bias(),
                        o.rope ? pass.inputs.positions : nullptr, o.rope ? &o.rope->cos : nullptr,
                        o.rope ? &o.rope->sin : nullptr, pass.stream);
}

}  // namespace fusewire::layers
