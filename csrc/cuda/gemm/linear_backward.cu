// Computes the gradient of a weight with cuBLASLt: dw[out, in] = dy^T . x, accumulated and stored
// in fp32, whatever the type of dy and x. The library uses column-major matrices: dw^T = x . dy^T,
// with x as its A [in, rows] and dy as its B [out, rows], transposed.
//
// A shape and bucket of rows has one algorithm, which the library suggests for the most rows of the
// bucket, so that bits do not depend on what was computed before. Sums that are split over rows use
// the workspace: in place they would be added in the order in which blocks end.
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>

#include "core/training_kernels.h"
#include "cuda/gemm/cublaslt_problem.h"
#include "cuda/gemm/cublaslt_workspace.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

using namespace cublaslt;

// The most rows that one fp32 product accumulates; more rows are several products, added to dw one
// after the other. One long chain of additions would cost precision, while reading and writing dw
// once more takes a small part of the time.
constexpr int64_t kMostRows = 1024;

struct Layouts {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t x, dy, dw;
};

template <class T>
Layouts layouts_of(const WeightGradientArguments& a, int64_t rows) {
  Layouts p;
  check(cublasLtMatmulDescInit(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(&p.operation, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                       sizeof(transposed)),
        "operation");
  check(cublasLtMatrixLayoutInit(&p.x, kType<T>, a.in_features, rows, a.x_stride), "x");
  check(cublasLtMatrixLayoutInit(&p.dy, kType<T>, a.out_features, rows, a.dy_stride), "dy");
  check(cublasLtMatrixLayoutInit(&p.dw, CUDA_R_32F, a.in_features, a.out_features, a.dw_stride),
        "dw");
  return p;
}

struct Algorithm {
  cublasLtMatmulAlgo_t words;
  bool workspace;
};

template <class T>
std::optional<Algorithm> suggestion(const WeightGradientArguments& a, int64_t rows,
                                    const Stream& stream) {
  Layouts p = layouts_of<T>(a, rows);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
          "preference");
  };
  const auto bytes = [](int alignment) { return static_cast<uint32_t>(alignment); };
  constexpr int64_t kSize = sizeof(T);
  const uint32_t of_dw = bytes(alignment_of(a.dw, a.dw_stride * int64_t{sizeof(float)}));
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(alignment_of(a.x, a.x_stride * kSize)));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         bytes(alignment_of(a.dy, a.dy_stride * kSize)));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_dw);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_dw);
  cublasLtMatmulHeuristicResult_t found;
  int returned = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library(stream), &p.operation, &p.x, &p.dy, &p.dw, &p.dw, &preference, 1, &found, &returned);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  check(status, "heuristic");
  if (returned == 0 || found.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return Algorithm{found.algo, found.workspaceSize > 0};
}

// (device, type, out_features, in_features, bucket of rows, alignments of dw, dy and x)
using Key = std::tuple<int, int, int64_t, int64_t, int64_t, int, int, int>;

template <class T>
std::optional<Algorithm> algorithm_of(const WeightGradientArguments& a, const Stream& stream) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<Key, std::optional<Algorithm>>;
  constexpr int64_t kSize = sizeof(T);
  const int64_t bucket = gemm_bucket(a.rows);
  const Key key = {stream.device.index,
                   static_cast<int>(kDTypeOf<T>),
                   a.out_features,
                   a.in_features,
                   bucket,
                   alignment_of(a.dw, a.dw_stride * int64_t{sizeof(float)}),
                   alignment_of(a.dy, a.dy_stride * kSize),
                   alignment_of(a.x, a.x_stride * kSize)};
  std::lock_guard lock(*mutex);
  const auto found = known->find(key);
  if (found != known->end()) return found->second;
  return known->emplace(key, suggestion<T>(a, bucket, stream)).first->second;
}

template <class T>
bool multiply_by(const WeightGradientArguments& a, const std::optional<Algorithm>& algorithm,
                 const Stream& stream) {
  if (!algorithm) return false;
  Layouts p = layouts_of<T>(a, a.rows);
  const float alpha = 1.0f, beta = a.accumulate ? 1.0f : 0.0f;
  void* const workspace = algorithm->workspace ? workspace_of(stream) : nullptr;
  const cublasStatus_t status = cublasLtMatmul(
      library(stream), &p.operation, &alpha, a.x, &p.x, a.dy, &p.dy, &beta, a.dw, &p.dw, a.dw,
      &p.dw, &algorithm->words, workspace, workspace ? kWorkspaceBytes : 0, handle(stream));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check(status, "product");
  return true;
}

template <class T>
void multiply(const WeightGradientArguments& a, const Stream& stream) {
  // What suits the bucket does not always suit each of its products.
  if (multiply_by<T>(a, algorithm_of<T>(a, stream), stream) ||
      multiply_by<T>(a, suggestion<T>(a, a.rows, stream), stream)) {
    return;
  }
  fail("linear_backward_weight: got dw ", name_of(DType::kFloat32), "[", a.out_features, ", ",
       a.in_features, "] of ", a.rows, " rows of ", name_of(kDTypeOf<T>),
       ", wanted a product that cuBLASLt computes; begin rows on 16 bytes");
}

}  // namespace

template <class T>
void linear_backward_weight(const WeightGradientArguments& given, const Stream& stream) {
  WeightGradientArguments a = given;
  if constexpr (std::is_same_v<T, float>) {
    while (a.rows > kMostRows) {
      WeightGradientArguments part = a;
      part.rows = kMostRows;
      multiply<T>(part, stream);
      a.dy = static_cast<const T*>(a.dy) + kMostRows * a.dy_stride;
      a.x = static_cast<const T*>(a.x) + kMostRows * a.x_stride;
      a.rows -= kMostRows;
      a.accumulate = true;
    }
  }
  if (a.rows == 0) {
    if (a.accumulate) return;
    check(cudaMemset2DAsync(a.dw, static_cast<size_t>(a.dw_stride) * sizeof(float), 0,
                            static_cast<size_t>(a.in_features) * sizeof(float),
                            static_cast<size_t>(a.out_features), handle(stream)),
          "zero");
    return;
  }
  multiply<T>(a, stream);
}

#define INSTANTIATE(T) \
  template void linear_backward_weight<T>(const WeightGradientArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
