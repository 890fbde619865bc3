#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void activate(const Tensor& out, const Tensor& x, Activation activation, const Stream& stream) {
  Check check("activate", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.activate(out.data, out.row_stride, x.data, x.row_stride, rows.size, cols.size,
                     activation, stream);
  });
}

void soft_cap(const Tensor& out, const Tensor& x, float cap, const Stream& stream) {
  Check check("soft_cap", stream);
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  check.require(cap > 0, "cap: got ", cap, ", wanted a positive number");
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.soft_cap(out.data, out.row_stride, x.data, x.row_stride, rows.size, cols.size, cap,
                     stream);
  });
}

void gate(const Tensor& out, const Tensor& x, Activation activation, const Stream& stream) {
  Check check("gate", stream);
  Dim rows("rows"), cols("n");
  check.floats("out", out, {&rows, &cols});
  Dim doubled("2n", 2 * cols.size);
  check.floats("x", x, {&rows, &doubled});
  dispatch(check, stream, rows.size * cols.size, [&](const Kernels& kernels) {
    kernels.gate(out.data, out.row_stride, x.data, x.row_stride, rows.size, cols.size, activation,
                 stream);
  });
}

}  // namespace fusewire::ops
