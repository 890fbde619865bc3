// Whether an implementation of a matrix product rounds its result once: seen in what it computes,
// for nothing that cuBLASLt tells about its kernels says so.
#pragma once

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

// Computes the product without its activation, whose approximations would hide the difference, and
// compares some rows with plain_gemm. Of sums that are rounded before a bias or a residual is added
// a quarter comes out otherwise; of those added up in another order one in a hundred (fp16,
// k = 3072). `a.out` is overwritten; operands are random, of magnitude 1. Waits for the stream.
// False also when the choice cannot compute the product. T is __half or __nv_bfloat16.
template <class T>
bool rounds_once(const GemmArguments& a, const GemmChoice& choice, const Stream& stream);

}  // namespace fusewire::cuda
