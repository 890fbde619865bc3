// Matrix products of the targets that share all other kernels with the one this file is compiled
// for.
#pragma once

#include "core/gemm.h"

namespace fusewire::FUSEWIRE_TARGET {

#if FUSEWIRE_VEC_BYTES == 64
const GemmKernels* gemm_vnni(Format format);
const GemmKernels* gemm_bf16(Format format);
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
