// Computes any matrix product with fp32 multiply-adds: the fallback for what the epilogues of the
// libraries and of our tensor core kernels do not support, and a reference. It is never fast.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

template <class T>
void plain_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
