// Products whose input rows another op computes just before, so that both can be fused.
#include "ops/dispatch.h"
#include "ops/norm_arguments.h"
#include "ops/ops.h"
#include "ops/product.h"

namespace fusewire::ops {

void norm_linear(const Tensor& out, const Tensor& normed, const Tensor& x, const Tensor& weight,
                 const Tensor* bias, float eps, bool centered, const Linear& linear,
                 Activation activation, const Stream& stream) {
  Check check("norm_linear", stream);
  check.require(centered || !bias, "bias: got one for an RMSNorm, wanted none");
  const NormArguments norm = norm_arguments(check, normed, x, nullptr, weight, bias, eps);
  const Product p = product(check, out, normed, linear, activation, nullptr, stream);
  dispatch(check, stream, norm.rows, [&](const Kernels& kernels) {
    if (p.kernels->run_normed) return p.kernels->run_normed(p.arguments, norm, centered, stream);
    centered ? kernels.layer_norm(norm, stream) : kernels.rms_norm(norm, stream);
    p.kernels->run(p.arguments, stream);
  });
}

void activated_linear(const Tensor& out, const Tensor& x, Activation activation, bool gated,
                      const Linear& linear, const Tensor* residual, const Stream& stream) {
  Check check("activated_linear", stream);
  const int64_t in = linear.in_features();
  Dim rows("tokens"), cols(gated ? "2 * in_features" : "in_features", gated ? 2 * in : in);
  check.floats("x", x, {&rows, &cols});
  const Tensor made = x.columns(0, in);
  const Product p = product(check, out, made, linear, Activation::kNone, residual, stream);
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    if (p.kernels->run_activated) {
      return p.kernels->run_activated(p.arguments, activation, gated, stream);
    }
    const auto make = gated ? kernels.gate : kernels.activate;
    make(x.data, x.row_stride, x.data, x.row_stride, rows.size, in, activation, stream);
    p.kernels->run(p.arguments, stream);
  });
}

}  // namespace fusewire::ops
