// One matrix product of the library, as its implementations on this device see it.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/stream.h"

namespace fusewire::cuda {

// out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + residual, accumulated in fp32.
// bias [n] and residual may be null; residual may be out. Strides count elements; weight is dense.
struct GemmArguments {
  void* out;
  int64_t out_stride;
  const void* x;
  int64_t x_stride;
  const void* weight;
  const void* bias;
  const void* residual;
  int64_t residual_stride;
  int64_t m, n, k;
  Activation activation;
};

// Our own kernels for Hopper (T is __half or __nv_bfloat16). They come in numbered configurations
// (tile, slices of k); which is fastest for a shape is measured, see gemm_choice.h.
int sm90_gemm_configurations();
// Whether this configuration can compute the product: alignment of TMA, sizes.
bool sm90_gemm_fits(const GemmArguments& a, int configuration);
template <class T>
void sm90_gemm(const GemmArguments& a, int configuration, const Stream& stream);

}  // namespace fusewire::cuda
