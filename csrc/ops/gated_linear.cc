// A product whose output a gated unit (Shazeer 2020) reads just after, so that both can be fused.
#include "ops/dispatch.h"
#include "ops/ops.h"
#include "ops/product.h"

namespace fusewire::ops {

void gated_linear(const Tensor& out, const Tensor& both, const Tensor& x, const Linear& linear,
                  Activation activation, const Stream& stream) {
  Check check("gated_linear", stream);
  const int64_t rows = linear.out_features();
  check.require(rows % 2 == 0, "out_features: got ", rows, ", wanted an even number, for a | b");
  Dim tokens("tokens"), in("in_features", linear.in_features());
  Dim width("out_features", rows), n("out_features / 2", rows / 2);
  check.floats("x", x, {&tokens, &in});
  check.floats("both", both, {&tokens, &width});
  check.floats("out", out, {&tokens, &n});
  check.require(both.data != x.data || stream.recording, "both: got x's memory, wanted its own");
  check.require(out.data != x.data || stream.recording, "out: got x's memory, wanted its own");
  const Product p = product(check, both, x, linear, Activation::kNone, nullptr, stream);
  dispatch(check, stream, tokens.size, [&](const Kernels& kernels) {
    if (!p.kernels->features.gated) {
      p.kernels->run(p.arguments, stream);
      return kernels.gate(out.data, out.row_stride, both.data, both.row_stride, tokens.size,
                          rows / 2, activation, stream);
    }
    GemmArguments a = p.arguments;
    a.both = both.data;
    a.both_stride = both.row_stride;
    a.out = out.data;
    a.out_stride = out.row_stride;
    a.activation = activation;
    p.kernels->run(a, stream);
  });
}

}  // namespace fusewire::ops
