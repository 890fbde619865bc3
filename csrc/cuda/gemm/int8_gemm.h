// int8 products with a scale per row of x and of the weight, by mma.sync, which every GPU since
// Ampere has. They are used where Hopper's own kernels (sm90_gemm_int8.cu) do not fit, and on all
// other GPUs.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// Requires a.integers, operands aligned to 16 bytes, and strides and a.k that are multiples of 16.
// Sums are exact, so a row has the same bits in any batch.
template <class T>
void int8_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
