// Any matrix product at all, by multiply-adds in fp32: what the libraries and our tensor core
// kernels cannot say in their epilogues. Right, never fast.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

template <class T>
void plain_gemm(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
