// Matrix products by cuBLASLt: any shape, stride and alignment, accumulated in fp32. Bias,
// residual, ReLU and, in half precision, the tanh GELU are fused into its epilogue; other
// activations are a separate pass over the output. Its kernels for odd alignments are slow but
// correct. A gated unit is a separate pass over the product, too. If x and weight have scales they
// are e4m3 (core/gemm.h), which the library supports only for some shapes and epilogues. It is not
// used for int8: its results are integers, or have one scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/gemm.h"

namespace fusewire::cuda {

// The library's description of one of its kernels. It is also valid in another process that uses
// the same version of the library.
struct CublasltAlgorithm {
  uint64_t words[8] = {};
  uint64_t workspace_bytes = 0;
  bool activation_apart = false;  // the activation is a separate pass, not in the epilogue
};

size_t cublaslt_version();

// Returns false for what no epilogue of the library supports: scales of integers, a residual that
// is added after an activation, and a bias that is not aligned to 16 bytes, which its kernels
// assume. Also false for e4m3 in blocks with few rows, or where the number of rows or of blocks of
// k is not a multiple of 4.
bool cublaslt_fits(const GemmArguments& a);

// Some of the library's kernels that split k round the sum to half precision before they add the
// bias and apply the activation. kOnce excludes kernels that split k where this matters; kUnknown
// is for callers that check the results (gemm_rounding.h).
enum class Rounding { kOnce, kUnknown };

// Returns at most `count` algorithms that the library suggests, the best first; none if it cannot
// compute the product.
template <class T>
std::vector<CublasltAlgorithm> cublaslt_algorithms(const GemmArguments& a, size_t count,
                                                   Rounding rounding, const Stream& stream);

// Returns false, without a launch, if the algorithm cannot compute this product.
//
// An algorithm that needs a workspace uses the one of its stream. A graph that was captured on a
// stream is therefore replayed on that stream, or ordered with it.
template <class T>
bool cublaslt_gemm(const GemmArguments& a, const CublasltAlgorithm& algorithm,
                   const Stream& stream);

// Returns the size of an element of x and of the weight.
template <class T>
int64_t operand_bytes(const GemmArguments& a) {
  return a.x.scales ? 1 : static_cast<int64_t>(sizeof(T));
}

// Returns the largest power of two, at most 16, that divides the address and the stride in bytes.
inline int alignment_of(const void* data, int64_t stride_bytes) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride_bytes) | 16;
  return static_cast<int>(bits & (~bits + 1));
}

}  // namespace fusewire::cuda
