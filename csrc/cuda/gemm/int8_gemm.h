// Products of int8 with a scale a row of x and of the weight by mma.sync, which every GPU since
// Ampere has: of what Hopper's own kernels (sm90_gemm_int8.cu) do not take, and everywhere else.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// Sums are exact, so that a row has the same bits in any batch. a.integers; both operands begin on
// 16 bytes and have strides and a.k in multiples of 16.
template <class T>
void int8_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
