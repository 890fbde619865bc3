#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void pool(const Tensor& out, const Tensor& x, const SequenceBatch& batch, Pooling pooling,
          const Stream& stream) {
  Check check("pool", stream);
  check.on_device("batch", batch.device());
  Dim tokens("tokens", batch.tokens()), sequences("sequences", batch.sequences()), hidden("hidden");
  check.floats("x", x, {&tokens, &hidden});
  check.floats("out", out, {&sequences, &hidden});
  dispatch(check, stream, tokens.size, [&](const Kernels& kernels) {
    kernels.pool(out.data, out.row_stride, x.data, x.row_stride, batch, hidden.size, pooling,
                 stream);
  });
}

void softmax(const Tensor& out, const Tensor& x, const Stream& stream) {
  Check check("softmax", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.softmax(out.data, out.row_stride, x.data, x.row_stride, rows.size, cols.size, stream);
  });
}

void log_softmax(const Tensor& out, const Tensor& x, const Stream& stream) {
  Check check("log_softmax", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.is("out", out, DType::kFloat32, {&rows, &cols});
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.log_softmax(out.as<float>(), out.row_stride, x.data, x.row_stride, rows.size, cols.size,
                        stream);
  });
}

void l2_normalize(const Tensor& out, const Tensor& x, const Stream& stream) {
  Check check("l2_normalize", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.l2_normalize(out.data, out.row_stride, x.data, x.row_stride, rows.size, cols.size,
                         stream);
  });
}

void top_k(const Tensor& values, const Tensor& indices, const Tensor& x, const Stream& stream) {
  Check check("top_k", stream);
  Dim rows("rows"), cols("cols"), k("k");
  check.floats("x", x, {&rows, &cols});
  check.floats("values", values, {&rows, &k});
  check.is("indices", indices, DType::kInt64, {&rows, &k});
  check.contiguous("values", values);
  check.contiguous("indices", indices);
  check.require(k.size >= 1 && k.size <= cols.size, "k: got ", k.size, ", wanted 1 to ", cols.size,
                ", the width of x");
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    kernels.top_k(values.data, indices.as<int64_t>(), x.data, x.row_stride, rows.size, cols.size,
                  k.size, stream);
  });
}

void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows, const Stream& stream) {
  Check check("gather_rows", stream);
  Dim x_rows("x rows"), cols("cols"), count("count");
  check.floats("x", x, {&x_rows, &cols});
  check.is("rows", rows, DType::kInt64, {&count});
  check.floats("out", out, {&count, &cols});
  dispatch(check, stream, count.size, [&](const Kernels& kernels) {
    kernels.gather_rows(out.data, out.row_stride, x.data, x.row_stride, rows.as<int64_t>(),
                        count.size, x_rows.size, cols.size, stream);
  });
}

}  // namespace fusewire::ops
