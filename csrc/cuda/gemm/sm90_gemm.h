// Our own matrix products for Hopper (T is __half or __nv_bfloat16). They come in numbered
// configurations (tile, slices of k); which is fastest for a shape is measured, see gemm_choice.h.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

int sm90_gemm_configurations();
// Whether this configuration can compute the product: alignment of TMA, sizes.
bool sm90_gemm_fits(const GemmArguments& a, int configuration);
template <class T>
void sm90_gemm(const GemmArguments& a, int configuration, const Stream& stream);
// Of e4m3 with scales, in a tile of the configurations.
template <class T>
void sm90_gemm_float8(const GemmArguments& a, int channels, int tokens, int split,
                      const Stream& stream);

}  // namespace fusewire::cuda
