#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void dropout_add(const Tensor& out, const Tensor& x, const Tensor* residual, float probability,
                 int64_t seed, int64_t offset, const Stream& stream) {
  drop_and_add(out, x, residual, {probability, seed, offset}, stream);
}

void drop_and_add(const Tensor& out, const Tensor& x, const Tensor* residual,
                  const Dropout& dropout, const Stream& stream) {
  Check check("dropout_add", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  if (residual) check.floats("residual", *residual, {&rows, &cols});
  const float probability = dropout.probability;
  check.require(probability >= 0.0f && probability < 1.0f, "probability: got ", probability,
                ", wanted at least 0 and less than 1");
  dispatch_training(check, stream, rows.size * cols.size, [&](const TrainingKernels& kernels) {
    kernels.dropout_add(out.data, out.row_stride, x.data, x.row_stride,
                        residual ? residual->data : nullptr, residual ? residual->row_stride : 0,
                        rows.size, cols.size, dropout, stream);
  });
}

}  // namespace fusewire::ops
