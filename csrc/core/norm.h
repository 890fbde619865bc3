// The arguments of LayerNorm and RMSNorm, for every target.
#pragma once

#include <cstdint>

namespace fusewire {

// out = norm(x) * weight [+ bias] [+ residual], by rows. bias and residual may be null; at least
// one is.
struct NormArguments {
  void* out;
  const void* x;
  const void* residual;
  const void* weight;
  const void* bias;
  int64_t out_stride, x_stride, residual_stride, rows, cols;
  float eps;
};

}  // namespace fusewire
