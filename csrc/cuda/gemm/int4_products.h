// The products with int4 weights, for the kernel table.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// T is __half or __nv_bfloat16.
template <class T>
const GemmKernels* int4_products();

}  // namespace fusewire::cuda
