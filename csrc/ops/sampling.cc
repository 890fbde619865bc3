#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

constexpr int64_t kWidest = 1 << 24;  // up to here a float counts exactly

}  // namespace

void penalize(const Tensor& logits, const Tensor& offsets, const Tensor& tokens,
              const Tensor& counts, const Tensor& repetition, const Tensor& presence,
              const Tensor& frequency, const Stream& stream) {
  Check check("penalize", stream);
  Dim rows("rows"), vocab("vocab"), n("n");
  check.floats("logits", logits, {&rows, &vocab});
  Dim ends("rows + 1", rows.size + 1);
  check.is("offsets", offsets, DType::kInt32, {&ends});
  check.is("tokens", tokens, DType::kInt32, {&n});
  check.is("counts", counts, DType::kInt32, {&n});
  check.is("repetition", repetition, DType::kFloat32, {&rows});
  check.is("presence", presence, DType::kFloat32, {&rows});
  check.is("frequency", frequency, DType::kFloat32, {&rows});
  dispatch(check, stream, n.size == 0 ? 0 : rows.size, [&](const Kernels& kernels) {
    kernels.penalize(logits.data, logits.row_stride, rows.size, vocab.size, offsets.as<int32_t>(),
                     tokens.as<int32_t>(), counts.as<int32_t>(), n.size, repetition.as<float>(),
                     presence.as<float>(), frequency.as<float>(), stream);
  });
}

void bias_logits(const Tensor& logits, const Tensor& rows, const Tensor& tokens,
                 const Tensor& values, const Stream& stream) {
  Check check("bias_logits", stream);
  Dim logits_rows("logits rows"), vocab("vocab"), n("n");
  check.floats("logits", logits, {&logits_rows, &vocab});
  check.is("rows", rows, DType::kInt32, {&n});
  check.is("tokens", tokens, DType::kInt32, {&n});
  check.is("values", values, DType::kFloat32, {&n});
  dispatch(check, stream, n.size, [&](const Kernels& kernels) {
    kernels.bias_logits(logits.data, logits.row_stride, logits_rows.size, vocab.size,
                        rows.as<int32_t>(), tokens.as<int32_t>(), values.as<float>(), n.size,
                        stream);
  });
}

void sample(const Tensor& tokens, const Tensor& logits, const Tensor& temperature,
            const Tensor& top_k, const Tensor& top_p, const Tensor& min_p, const Tensor& typical_p,
            const Tensor& seeds, const Tensor& steps, const Stream& stream) {
  Check check("sample", stream);
  Dim rows("rows"), vocab("vocab");
  check.floats("logits", logits, {&rows, &vocab});
  check.is("tokens", tokens, DType::kInt64, {&rows});
  check.is("temperature", temperature, DType::kFloat32, {&rows});
  check.is("top_k", top_k, DType::kInt32, {&rows});
  check.is("top_p", top_p, DType::kFloat32, {&rows});
  check.is("min_p", min_p, DType::kFloat32, {&rows});
  check.is("typical_p", typical_p, DType::kFloat32, {&rows});
  check.is("seeds", seeds, DType::kInt64, {&rows});
  check.is("steps", steps, DType::kInt64, {&rows});
  check.require(vocab.size >= 1 && vocab.size <= kWidest, "vocab: got ", vocab.size,
                ", wanted 1 to ", kWidest, ", the width of logits");
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    kernels.sample(
        {tokens.as<int64_t>(), logits.data, logits.row_stride, rows.size, vocab.size,
         temperature.as<float>(), top_k.as<int32_t>(), top_p.as<float>(), min_p.as<float>(),
         typical_p.as<float>(), seeds.as<int64_t>(), steps.as<int64_t>()},
        stream);
  });
}

void log_sum_exp(const Tensor& out, const Tensor& x, const Stream& stream) {
  Check check("log_sum_exp", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.is("out", out, DType::kFloat32, {&rows});
  check.require(cols.size >= 1, "x: got rows without columns, wanted at least one");
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    kernels.log_sum_exp(out.as<float>(), x.data, x.row_stride, rows.size, cols.size, stream);
  });
}

void gather_columns(const Tensor& out, const Tensor& x, const Tensor& columns,
                    const Stream& stream) {
  Check check("gather_columns", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.is("columns", columns, DType::kInt64, {&rows});
  check.is("out", out, DType::kFloat32, {&rows});
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    kernels.gather_columns(out.as<float>(), x.data, x.row_stride, columns.as<int64_t>(), rows.size,
                           cols.size, stream);
  });
}

void rank_columns(const Tensor& out, const Tensor& x, const Tensor& columns, const Stream& stream) {
  Check check("rank_columns", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.is("columns", columns, DType::kInt64, {&rows});
  check.is("out", out, DType::kInt32, {&rows});
  check.require(cols.size <= kWidest, "x: got ", cols.size, " columns, wanted at most ", kWidest);
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    kernels.rank_columns(out.as<int32_t>(), x.data, x.row_stride, columns.as<int64_t>(), rows.size,
                         cols.size, stream);
  });
}

}  // namespace fusewire::ops
