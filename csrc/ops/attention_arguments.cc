#include "ops/attention_arguments.h"

#include <algorithm>

namespace fusewire::ops {
namespace {

// Returns by how many tokens the queries of a sequence exceed its keys at most; 0 for a bucket,
// whose lengths are not known.
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

AttentionArguments attention_arguments(Check& check, const Tensor& out, const Tensor& q,
                                       const AttentionSpec& spec, int64_t kv_heads,
                                       int64_t head_dim, int64_t excess, const Tensor* bias,
                                       const Tensor* log_sum_exp) {
  check.require(spec.heads > 0 && kv_heads > 0 && spec.heads % kv_heads == 0, "heads: got ",
                spec.heads, ", wanted a multiple of the keys' kv_heads ", kv_heads);
  Dim queries("queries"), heads("heads", spec.heads), bias_width("2 L - 1");
  Dim width("heads * head_dim", spec.heads * head_dim);
  check.floats("q", q, {&queries, &width});
  check.floats("out", out, {&queries, &width});
  const auto limit = [&](const char* name, int64_t value) {
    check.require(value >= 0, name, ": got ", value, ", wanted 0 or more, or UNLIMITED");
    return std::min(value, kUnlimited);
  };
  AttentionArguments a{};
  a.mask = {limit("left", spec.mask.left), limit("right", spec.mask.right)};
  check.require(excess <= a.mask.right, "right: got ", a.mask.right, ", wanted at least ", excess,
                ": a sequence has so many queries more than keys, and its first would see none");
  check.require(spec.soft_cap >= 0, "soft_cap: got ", spec.soft_cap, ", wanted 0 (none) or more");
  const float dropped = spec.dropout.probability;
  check.require(dropped >= 0 && dropped < 1, "dropout: got ", dropped,
                ", wanted 0 (none) or more, and less than 1");
  if (bias) {
    check.is("bias", *bias, DType::kFloat32, {&heads, &bias_width});
    check.contiguous("bias", *bias);
    check.require(bias_width.size % 2 == 1, "bias: got width ", bias_width.size,
                  ", wanted 2 L - 1, distances from -(L - 1) to L - 1");
    a.bias = bias->as<float>();
    a.bias_span = (bias_width.size + 1) / 2;
  }
  if (log_sum_exp) {
    check.is("log_sum_exp", *log_sum_exp, DType::kFloat32, {&heads, &queries});
    a.log_sum_exp = log_sum_exp->as<float>();
    a.log_sum_exp_stride = log_sum_exp->row_stride;
  }
  a.q = {q.data, q.row_stride};
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.heads = spec.heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.scale = spec.scale;
  a.soft_cap = spec.soft_cap;
  a.dropout = spec.dropout;
  return a;
}

void expect_supported(const Check& check, const AttentionArguments& a, const Stream& stream) {
  const Kernels& kernels = kernels_for(stream.device, check.dtype());
  const char* const lacks = kernels.attention_lacks(a);
  check.require(!lacks, "got ", lacks ? lacks : "", ", which no kernel of target ",
                kernels.target_name(), " does");
}

AttentionArguments packed_arguments(Check& check, const Tensor& out, const Tensor& q,
                                    const Tensor& k, const Tensor& v, const SequenceBatch& queries,
                                    const SequenceBatch& keys, const AttentionSpec& spec,
                                    const Tensor* bias, const Tensor* log_sum_exp,
                                    const Stream& stream) {
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
  return a;
}

}  // namespace fusewire::ops
