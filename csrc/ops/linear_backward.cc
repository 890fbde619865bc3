#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate,
                            const Stream& stream) {
  Check check("linear_backward_weight", stream);
  Dim rows("rows"), out("out"), in("in");
  check.floats("dy", dy, {&rows, &out});
  check.floats("x", x, {&rows, &in});
  check.is("dw", dw, DType::kFloat32, {&out, &in});
  const WeightGradientArguments a = {dw.as<float>(), dw.row_stride, dy.data,   dy.row_stride,
                                     x.data,         x.row_stride,  rows.size, out.size,
                                     in.size,        accumulate};
  dispatch_training(check, stream, out.size * in.size, [&](const TrainingKernels& kernels) {
    kernels.linear_backward_weight(a, stream);
  });
}

void column_sums(const Tensor& out, const Tensor& x, bool accumulate, const Stream& stream) {
  Check check("column_sums", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.is("out", out, DType::kFloat32, {&cols});
  dispatch_training(check, stream, cols.size, [&](const TrainingKernels& kernels) {
    kernels.column_sums(out.as<float>(), x.data, x.row_stride, rows.size, cols.size, accumulate,
                        stream);
  });
}

}  // namespace fusewire::ops
