#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/allocator.h"
#include "core/gemm_part.h"
#include "cuda/gemm/cublaslt_gemm.h"
#include "cuda/gemm/cublaslt_problem.h"
#include "cuda/gemm/cublaslt_workspace.h"
#include "cuda/kernels.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {

namespace cublaslt {

void* workspace_of(const Stream& stream) {
  static auto* mutex = new std::mutex;
  static auto* blocks = new std::map<std::pair<int, void*>, std::shared_ptr<void>>;
  std::lock_guard lock(*mutex);
  std::shared_ptr<void>& block = (*blocks)[{stream.device.index, stream.handle}];
  if (!block) {
    const RelaxedCapture relaxed;
    block = default_allocator(stream.device).allocate_uncached(kWorkspaceBytes, "cublas", stream);
  }
  return block.get();
}

}  // namespace cublaslt

using namespace cublaslt;

bool cublaslt_fits(const GemmArguments& a) {
  const bool bias_aligned = !a.bias || alignment_of(a.bias, 0) == 16;
  // The library wants the scales of a block in rows of a multiple of 4. For other numbers of rows
  // gemm.cu computes the remainder as a separate product, which does not pay off for few rows.
  constexpr int64_t kLeastRows = 512;
  const bool blocks_fit =
      !a.blocks || (a.m >= kLeastRows && a.m % 4 == 0 && a.k % (4 * kFloat8Block) == 0);
  return !a.integers && blocks_fit && bias_aligned &&
         (!a.residual || a.activation == Activation::kNone);
}

template <class T>
bool cublaslt_gemm(const GemmArguments& a, const CublasltAlgorithm& algorithm,
                   const Stream& stream) {
  if (a.both) {
    if (!cublaslt_gemm<T>(ungated(a), algorithm, stream)) return false;
    gate<T>(a.out, a.out_stride, a.both, a.both_stride, a.m, a.n / 2, a.activation, stream);
    return true;
  }
  if (!cublaslt_fits(a) || algorithm.workspace_bytes > kWorkspaceBytes) return false;
  if (!algorithm.activation_apart && !in_epilogue<T>(a.activation)) return false;
  Problem p;
  describe<T>(a, algorithm.activation_apart ? Activation::kNone : a.activation, p);
  const float alpha = 1.0f, beta = a.residual ? 1.0f : 0.0f;
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, algorithm.words, sizeof(algo));
  const auto multiply = [&](void* workspace) {
    return cublasLtMatmul(library(stream), &p.operation, &alpha, a.weight.data, &p.weight, a.x.data,
                          &p.x, &beta, a.residual ? a.residual : a.out, &p.residual, a.out, &p.out,
                          &algo, workspace, workspace ? kWorkspaceBytes : 0, handle(stream));
  };
  const auto refused = [](cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
  };
  // The algorithm gets the whole workspace: for another number of rows than it was chosen for, it
  // may need more.
  cublasStatus_t status = multiply(algorithm.workspace_bytes ? workspace_of(stream) : nullptr);
  if (refused(status) && !algorithm.workspace_bytes) status = multiply(workspace_of(stream));
  if (refused(status)) return false;
  check(status, "product");
  if (algorithm.activation_apart) {
    activate<T>(a.out, a.out_stride, a.out, a.out_stride, a.m, a.n, a.activation, stream);
  }
  return true;
}

#define INSTANTIATE(T) \
  template bool cublaslt_gemm<T>(const GemmArguments&, const CublasltAlgorithm&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
