#include "ops/dispatch.h"
#include "ops/dropout.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

NormBackwardArguments norm_arguments(Check& check, const Tensor& dx, const Tensor& dweight,
                                     const Tensor* dbias, const Tensor& dy, const Tensor& x,
                                     const Tensor& weight, const Tensor* dresidual, float eps,
                                     bool accumulate) {
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("dy", dy, {&rows, &cols});
  check.floats("dx", dx, {&rows, &cols});
  check.floats("weight", weight, {&cols});
  check.is("dweight", dweight, DType::kFloat32, {&cols});
  if (dbias) check.is("dbias", *dbias, DType::kFloat32, {&cols});
  if (dresidual) check.floats("dresidual", *dresidual, {&rows, &cols});
  check.require(cols.size > 0, "x: got rows of no elements, wanted at least one");
  check.require(eps > 0.0f, "eps: got ", eps, ", wanted more than 0");
  check.require(dx.data != x.data || !dx.data, "dx: got x's memory, wanted its own or dy's");
  NormBackwardArguments a = {};
  a.dx = dx.data;
  a.dweight = dweight.as<float>();
  a.dbias = dbias ? dbias->as<float>() : nullptr;
  a.dy = dy.data;
  a.x = x.data;
  a.weight = weight.data;
  a.dresidual = dresidual ? dresidual->data : nullptr;
  a.dx_stride = dx.row_stride;
  a.dy_stride = dy.row_stride;
  a.x_stride = x.row_stride;
  a.dresidual_stride = dresidual ? dresidual->row_stride : 0;
  a.rows = rows.size;
  a.cols = cols.size;
  a.eps = eps;
  a.accumulate = accumulate;
  return a;
}

}  // namespace

void layer_norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor* dbias,
                         const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor* dresidual, float eps, bool accumulate,
                         const Stream& stream) {
  Check check("layer_norm_backward", stream);
  const NormBackwardArguments a =
      norm_arguments(check, dx, dweight, dbias, dy, x, weight, dresidual, eps, accumulate);
  dispatch_training(check, stream, a.cols, [&](const TrainingKernels& kernels) {
    kernels.layer_norm_backward(a, stream);
  });
}

void layer_norm_dropout_backward(const Tensor& dx, const Tensor& dz, const Tensor& dweight,
                                 const Tensor* dbias, const Tensor* sums, const Tensor& dy,
                                 const Tensor& x, const Tensor& weight, float eps,
                                 float probability, int64_t seed, int64_t offset, bool accumulate,
                                 const Stream& stream) {
  norm_and_drop_backward(dx, dz, dweight, dbias, sums, dy, x, weight, eps,
                         {probability, seed, offset}, accumulate, stream);
}

void norm_and_drop_backward(const Tensor& dx, const Tensor& dz, const Tensor& dweight,
                            const Tensor* dbias, const Tensor* sums, const Tensor& dy,
                            const Tensor& x, const Tensor& weight, float eps,
                            const Dropout& dropout, bool accumulate, const Stream& stream) {
  Check check("layer_norm_dropout_backward", stream);
  NormBackwardArguments a =
      norm_arguments(check, dx, dweight, dbias, dy, x, weight, nullptr, eps, accumulate);
  Dim rows("rows", a.rows), cols("cols", a.cols);
  check.floats("dz", dz, {&rows, &cols});
  if (sums) check.is("sums", *sums, DType::kFloat32, {&cols});
  expect_probability(check, dropout);
  a.dz = dz.data;
  a.dz_stride = dz.row_stride;
  a.dropout = dropout;
  a.sums = sums ? sums->as<float>() : nullptr;
  dispatch_training(check, stream, a.cols, [&](const TrainingKernels& kernels) {
    kernels.layer_norm_backward(a, stream);
  });
}

void rms_norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                       const Tensor& weight, const Tensor* dresidual, float eps, bool accumulate,
                       const Stream& stream) {
  Check check("rms_norm_backward", stream);
  const NormBackwardArguments a =
      norm_arguments(check, dx, dweight, nullptr, dy, x, weight, dresidual, eps, accumulate);
  dispatch_training(check, stream, a.cols,
                    [&](const TrainingKernels& kernels) { kernels.rms_norm_backward(a, stream); });
}

void rms_norm_heads_backward(const Tensor& dx, const Tensor& dweight, const Tensor& x,
                             const Tensor& weight, float eps, bool accumulate,
                             const Stream& stream) {
  Check check("rms_norm_heads_backward", stream);
  Dim tokens("tokens"), width("heads * head_dim"), head_dim("head_dim");
  check.floats("x", x, {&tokens, &width});
  check.floats("dx", dx, {&tokens, &width});
  check.floats("weight", weight, {&head_dim});
  check.is("dweight", dweight, DType::kFloat32, {&head_dim});
  check.require(head_dim.size > 0 && width.size % head_dim.size == 0, "weight: got ", head_dim.size,
                " numbers, wanted a divisor of x's width ", width.size);
  check.require(eps > 0.0f, "eps: got ", eps, ", wanted more than 0");
  dispatch_training(check, stream, head_dim.size, [&](const TrainingKernels& kernels) {
    kernels.rms_norm_heads_backward(
        dx.data, dx.row_stride, dweight.as<float>(), x.data, x.row_stride, weight.data, tokens.size,
        width.size / head_dim.size, head_dim.size, eps, accumulate, stream);
  });
}

}  // namespace fusewire::ops
