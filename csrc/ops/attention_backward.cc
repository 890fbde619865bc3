#include "core/attention_backward.h"

#include "ops/attention_arguments.h"
#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor* dbias,
                        const Tensor& dout, const Tensor& out, const Tensor& q, const Tensor& k,
                        const Tensor& v, const SequenceBatch& queries, const SequenceBatch& keys,
                        const AttentionSpec& spec, const Tensor* bias, const Tensor& log_sum_exp,
                        const Stream& stream) {
  Check check("attention_backward", stream);
  AttentionBackwardArguments g{};
  g.forward =
      packed_arguments(check, out, q, k, v, queries, keys, spec, bias, &log_sum_exp, stream);
  Dim query_count("queries", queries.tokens()), key_count("keys", keys.tokens());
  Dim width("heads * head_dim", q.dim(1)), kv_width("kv_heads * head_dim", k.dim(1));
  check.floats("dout", dout, {&query_count, &width});
  check.floats("dq", dq, {&query_count, &width});
  check.floats("dk", dk, {&key_count, &kv_width});
  check.floats("dv", dv, {&key_count, &kv_width});
  if (dbias) {
    check.require(bias != nullptr, "dbias: got one without bias; give bias, or no dbias");
    Dim heads("heads", spec.heads), bias_width("2 L - 1", bias->dim(1));
    check.is("dbias", *dbias, DType::kFloat32, {&heads, &bias_width});
    check.contiguous("dbias", *dbias);
    g.dbias = dbias->as<float>();
  }
  g.dout = {dout.data, dout.row_stride};
  g.dq = dq.data;
  g.dk = dk.data;
  g.dv = dv.data;
  g.dq_stride = dq.row_stride;
  g.dk_stride = dk.row_stride;
  g.dv_stride = dv.row_stride;
  dispatch_training(check, stream, query_count.size,
                    [&](const TrainingKernels& kernels) { kernels.attention_backward(g, stream); });
}

}  // namespace fusewire::ops
