#include "ops/attention_arguments.h"
#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const SequenceBatch& queries, const SequenceBatch& keys, const AttentionSpec& spec,
               const Tensor* bias, const Tensor* log_sum_exp, const Stream& stream) {
  Check check("attention", stream);
  const AttentionArguments a =
      packed_arguments(check, out, q, k, v, queries, keys, spec, bias, log_sum_exp, stream);
  dispatch(check, stream, queries.tokens(),
           [&](const Kernels& kernels) { kernels.attention(a, stream); });
}

}  // namespace fusewire::ops
