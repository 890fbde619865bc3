#include "layers/cross_attention.h"

#include "layers/planes.h"
#include "layers/sublayer_shapes.h"
#include "ops/ops.h"

namespace fusewire::layers {

CrossAttention::CrossAttention(std::shared_ptr<const Linear> q,
                               std::shared_ptr<const Linear> output, int64_t heads, float scale)
    : Sublayer(std::move(output)), q_(std::move(q)), heads_(heads), scale_(scale) {
  head_dim_ = complete_cross(heads_, scale_, q_->shape());
  expect_output("CrossAttention", this->output().shape(), q_->in_features(), q_->out_features());
}

void CrossAttention::compute(const Tensor& context, const Norm* norm, Pass& pass) const {
  if (!pass.inputs.sources) {
    fail("CrossAttention: sources: got none, wanted the pages of each sequence's source");
  }
  if (pass.attention == 0) {
    fail("CrossAttention: got no self-attention in front of it, wanted one, whose planes it reads");
  }
  const PagedBatch& sources = *pass.inputs.sources;
  const Matrix q = pass.matrix(q_->out_features());
  pass.project(q, norm, *q_, Activation::kNone);
  const KeyValuePlanes planes = planes_of("CrossAttention", *pass.inputs.planes, pass.attention - 1,
                                          {heads_, sources.page_size(), head_dim_});
  ops::paged_attention(context, q, planes.keys, planes.values, sources, {heads_, scale_, {}},
                       nullptr, nullptr, pass.stream);
}

}  // namespace fusewire::layers
