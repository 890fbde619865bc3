#include "layers/attention.h"

#include <cmath>

#include "layers/planes.h"
#include "ops/ops.h"

namespace fusewire::layers {

Attention::Attention(std::shared_ptr<const Linear> qkv, std::shared_ptr<const Linear> output,
                     AttentionOptions options)
    : Sublayer(std::move(output)), qkv_(std::move(qkv)), options_(std::move(options)) {
  AttentionOptions& o = options_;
  if (o.heads < 1) fail("Attention: heads: got ", o.heads, ", wanted 1 or more");
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.kv_heads < 1 || o.heads % o.kv_heads) {
    fail("Attention: kv_heads: got ", o.kv_heads, ", wanted a divisor of heads ", o.heads);
  }
  const int64_t rows = qkv_->out_features(), all_heads = o.heads + 2 * o.kv_heads;
  if (rows % all_heads) {
    fail("Attention: qkv: got Linear[", rows, ", ", qkv_->in_features(),
         "], wanted rows for each of ", all_heads, " heads of q, k and v");
  }
  head_dim_ = rows / all_heads;
  expect_output("Attention", qkv_->in_features(), o.heads * head_dim_);
  if (!(o.soft_cap >= 0)) {
    fail("Attention: soft_cap: got ", o.soft_cap, ", wanted 0 (none) or more");
  }
  if (o.scale == 0) o.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (const auto* norm : {&o.q_norm, &o.k_norm}) {
    if (!*norm) continue;
    if ((*norm)->kind != Norm::Kind::kRmsNorm || (*norm)->weight.shape != Shape{head_dim_}) {
      fail("Attention: q_norm, k_norm: got weight", (*norm)->weight.shape.text(),
           ", wanted an rms_norm over [", head_dim_, "], the head_dim");
    }
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
