// The product of a few rows and a matrix of 4-bit numbers.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// As many rows as the kernel is for: more are multiplied faster by 16-bit numbers.
constexpr int64_t kMostInt4Rows = 256;

// Whether rows of x lie as the kernel reads them.
template <class T>
bool int4_gemm_fits(const GemmArguments& a);

template <class T>
void int4_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
