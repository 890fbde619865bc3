// The product of few rows and a matrix of 4-bit elements.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// The most rows that the kernel is meant for: more are faster with a weight dequantised to 16 bits.
constexpr int64_t kMostInt4Rows = 256;

// Returns whether the rows of x are few enough and aligned as the kernel needs.
template <class T>
bool int4_gemm_fits(const GemmArguments& a);

template <class T>
void int4_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
