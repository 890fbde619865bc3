// Matrix products by cuBLASLt: any shape, stride and alignment, sums in fp32. Bias, residual, ReLU
// and, in half precision, the tanh GELU are in its epilogue; another activation is a pass over the
// output that follows. Its kernels for odd alignments are slow but right. x and weight with scales
// are e4m3 (core/gemm.h), which only some shapes and epilogues of it compute; of int8 its results
// are integers, or have one scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/gemm.h"

namespace fusewire::cuda {

// The library's description of one of its kernels. It stays valid in another process with the same
// version of the library.
struct CublasltAlgorithm {
  uint64_t words[8] = {};
  uint64_t workspace_bytes = 0;
  bool activation_apart = false;  // activation by a following pass rather than the epilogue
};

size_t cublaslt_version();

// False for what no epilogue of the library can say: scales of integers, a residual added after an
// activation, and a bias off a 16-byte boundary, which its kernels take for granted; for few
// rows in blocks, and where their number or that of the blocks of k is no multiple of 4.
bool cublaslt_fits(const GemmArguments& a);

// Of the library's kernels that split k some round the sum to half precision before bias and
// activation. kOnce asks for none that split k where that matters; kUnknown is for callers who look
// at what they compute (gemm_rounding.h).
enum class Rounding { kOnce, kUnknown };

// At most `count` suggestions of the library, its best first; none when it cannot compute this.
template <class T>
std::vector<CublasltAlgorithm> cublaslt_algorithms(const GemmArguments& a, size_t count,
                                                   Rounding rounding, const Stream& stream);

// False, with nothing launched, when the algorithm cannot compute this product.
//
// An algorithm that needs a workspace shares that of its stream: a graph that was captured on a
// stream is replayed on it, or in its order.
template <class T>
bool cublaslt_gemm(const GemmArguments& a, const CublasltAlgorithm& algorithm,
                   const Stream& stream);

// Of an element of x and of the weight.
template <class T>
int64_t operand_bytes(const GemmArguments& a) {
  return a.x.scales ? 1 : static_cast<int64_t>(sizeof(T));
}

// The largest power of two, at most 16, that divides the address and the stride in bytes.
inline int alignment_of(const void* data, int64_t stride_bytes) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride_bytes) | 16;
  return static_cast<int>(bits & (~bits + 1));
}

}  // namespace fusewire::cuda
