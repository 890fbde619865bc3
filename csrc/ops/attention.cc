#include <algorithm>

#include "ops/attention_arguments.h"
#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

// By how many queries a sequence exceeds its keys, at most. What is recorded for many batches is
// not known.
int64_t excess_of(const SequenceBatch& queries, const SequenceBatch& keys) {
  const int32_t *q = queries.begin(), *k = keys.begin();
  if (q == k || !q || !k) return 0;
  int64_t excess = 0;
  for (int64_t i = 0; i < queries.sequences(); ++i) {
    excess = std::max<int64_t>(excess, (q[i + 1] - q[i]) - (k[i + 1] - k[i]));
  }
  return excess;
}

}  // namespace

void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const SequenceBatch& queries, const SequenceBatch& keys, const AttentionSpec& spec,
               const Tensor* bias, const Tensor* log_sum_exp, const Stream& stream) {
  Check check("attention", stream);
  check.on_device("queries", queries.device());
  check.on_device("keys", keys.device());
  check.require(queries.sequences() == keys.sequences(), "keys: got ", keys.sequences(),
                " sequences, wanted ", queries.sequences(), ", as many as queries");
  Dim query_count("queries", queries.tokens()), key_count("keys", keys.tokens());
  Dim width("heads * head_dim"), kv_width("kv_heads * head_dim");
  check.floats("q", q, {&query_count, &width});
  check.floats("k", k, {&key_count, &kv_width});
  check.floats("v", v, {&key_count, &kv_width});
  check.require(spec.heads > 0 && width.size % spec.heads == 0, "heads: got ", spec.heads,
                ", wanted a divisor of q's width ", width.size);
  const int64_t head_dim = width.size / spec.heads;
  check.require(head_dim > 0 && kv_width.size % head_dim == 0, "k: got width ", kv_width.size,
                ", wanted a multiple of q's head_dim ", head_dim);
  AttentionArguments a = attention_arguments(check, out, q, spec, kv_width.size / head_dim,
                                             head_dim, excess_of(queries, keys), bias, log_sum_exp);
  a.k = {k.data, k.row_stride};
  a.v = {v.data, v.row_stride};
  a.queries = &queries;
  a.keys = &keys;
  expect_supported(check, a, stream);
  dispatch(check, stream, query_count.size,
           [&](const Kernels& kernels) { kernels.attention(a, stream); });
}

}  // namespace fusewire::ops
