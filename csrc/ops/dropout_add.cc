#include "ops/dispatch.h"
#include "ops/dropout.h"
#include "ops/norm_arguments.h"
#include "ops/ops.h"

namespace fusewire::ops {

void expect_probability(const Check& check, const Dropout& dropout) {
  const float probability = dropout.probability;
  check.require(probability >= 0.0f && probability < 1.0f, "probability: got ", probability,
                ", wanted at least 0 and less than 1");
}

void dropout_add(const Tensor& out, const Tensor* sums, const Tensor& x, const Tensor* residual,
                 float probability, int64_t seed, int64_t offset, bool accumulate,
                 const Stream& stream) {
  drop_and_add(out, sums, x, residual, {probability, seed, offset}, accumulate, stream);
}

void drop_and_add(const Tensor& out, const Tensor* sums, const Tensor& x, const Tensor* residual,
                  const Dropout& dropout, bool accumulate, const Stream& stream) {
  Check check("dropout_add", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  if (residual) check.floats("residual", *residual, {&rows, &cols});
  if (sums) check.is("sums", *sums, DType::kFloat32, {&cols});
  expect_probability(check, dropout);
  // Without rows the sums are 0.
  dispatch_training(check, stream, cols.size, [&](const TrainingKernels& kernels) {
    kernels.dropout_add(out.data, out.row_stride, sums ? sums->as<float>() : nullptr, x.data,
                        x.row_stride, residual ? residual->data : nullptr,
                        residual ? residual->row_stride : 0, rows.size, cols.size, dropout,
                        accumulate, stream);
  });
}

void dropout_add_layer_norm(const Tensor& out, const Tensor& sum, const Tensor& x,
                            const Tensor& residual, const Tensor& weight, const Tensor* bias,
                            float eps, float probability, int64_t seed, int64_t offset,
                            const Stream& stream) {
  drop_add_and_norm(out, sum, x, residual, weight, bias, eps, {probability, seed, offset}, stream);
}

void drop_add_and_norm(const Tensor& out, const Tensor& sum, const Tensor& x,
                       const Tensor& residual, const Tensor& weight, const Tensor* bias, float eps,
                       const Dropout& dropout, const Stream& stream) {
  Check check("dropout_add_layer_norm", stream);
  const NormArguments norm = norm_arguments(check, out, x, &residual, weight, bias, eps);
  Dim rows("rows", norm.rows), cols("cols", norm.cols);
  check.floats("sum", sum, {&rows, &cols});
  expect_probability(check, dropout);
  DropoutNormArguments a = {};
  a.out = out.data;
  a.sum = sum.data;
  a.x = x.data;
  a.residual = residual.data;
  a.weight = norm.weight;
  a.bias = norm.bias;
  a.out_stride = out.row_stride;
  a.sum_stride = sum.row_stride;
  a.x_stride = x.row_stride;
  a.residual_stride = residual.row_stride;
  a.rows = norm.rows;
  a.cols = norm.cols;
  a.eps = eps;
  a.dropout = dropout;
  dispatch_training(check, stream, a.rows, [&](const TrainingKernels& kernels) {
    kernels.dropout_add_layer_norm(a, stream);
  });
}

}  // namespace fusewire::ops
