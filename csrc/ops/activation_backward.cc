#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void activate_backward(const Tensor& dx, const Tensor* sums, const Tensor& dy, const Tensor& x,
                       Activation activation, bool accumulate, const Stream& stream) {
  Check check("activate_backward", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("dy", dy, {&rows, &cols});
  check.floats("dx", dx, {&rows, &cols});
  if (sums) check.is("sums", *sums, DType::kFloat32, {&cols});
  dispatch_training(check, stream, cols.size, [&](const TrainingKernels& kernels) {
    kernels.activate_backward(dx.data, dx.row_stride, sums ? sums->as<float>() : nullptr, dy.data,
                              dy.row_stride, x.data, x.row_stride, rows.size, cols.size, activation,
                              accumulate, stream);
  });
}

void gate_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Activation activation,
                   const Stream& stream) {
  Check check("gate_backward", stream);
  Dim rows("rows"), cols("n");
  check.floats("dy", dy, {&rows, &cols});
  Dim doubled("2n", 2 * cols.size);
  check.floats("x", x, {&rows, &doubled});
  check.floats("dx", dx, {&rows, &doubled});
  dispatch_training(check, stream, rows.size * cols.size, [&](const TrainingKernels& kernels) {
    kernels.gate_backward(dx.data, dx.row_stride, dy.data, dy.row_stride, x.data, x.row_stride,
                          rows.size, cols.size, activation, stream);
  });
}

}  // namespace fusewire::ops
