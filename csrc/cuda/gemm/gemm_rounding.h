// Finds out whether an implementation of a matrix product rounds its result once. It compares
// results, because cuBLASLt's descriptions of its kernels do not say so.
#pragma once

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

// Computes the product without its activation, whose approximation would hide the difference, and
// compares some rows with plain_gemm. If sums are rounded before a bias or a residual is added, a
// quarter of the elements differ; if sums are added in another order, one in a hundred (fp16, k =
// 3072). Overwrites `a.out`; operands must be random, of magnitude 1. Synchronises the stream.
// Returns false also if the choice cannot compute the product. T is __half or __nv_bfloat16.
template <class T>
bool rounds_once(const GemmArguments& a, const GemmChoice& choice, const Stream& stream);

}  // namespace fusewire::cuda
