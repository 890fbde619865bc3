// Asks cuBLASLt for the algorithms that it suggests for a product.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/gemm_part.h"
#include "cuda/gemm/cublaslt_problem.h"

namespace fusewire::cuda {
namespace {

using namespace cublaslt;

constexpr int kAsked = 12;  // suggestions at a time; the best is seldom a later one

template <class Value>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference,
            cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
        "preference");
}

template <class T>
std::vector<CublasltAlgorithm> ask(const GemmArguments& a, Problem& p, bool may_split_k,
                                   const Stream& stream) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // Partial sums are fp32, whatever T is.
  const uint32_t split = std::is_same_v<T, float> ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                  : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, may_split_k ? split : 0u);
  constexpr int64_t kSize = sizeof(T);
  const int64_t operand = operand_bytes<T>(a);
  const auto bytes = [](int alignment) { return static_cast<uint32_t>(alignment); };
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         bytes(alignment_of(a.weight.data, a.weight.stride * operand)));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         bytes(alignment_of(a.x.data, a.x.stride * operand)));
  const int out = alignment_of(a.out, a.out_stride * kSize);
  const int residual = a.residual ? alignment_of(a.residual, a.residual_stride * kSize) : out;
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(residual));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(out));

  std::vector<cublasLtMatmulHeuristicResult_t> found(kAsked);
  int returned = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library(stream), &p.operation, &p.weight, &p.x, &p.residual,
                                     &p.out, &preference, kAsked, found.data(), &returned);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "heuristic");
  std::vector<CublasltAlgorithm> result;
  for (int i = 0; i < returned; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    CublasltAlgorithm algorithm;
    static_assert(sizeof(algorithm.words) == sizeof(found[i].algo));
    std::memcpy(algorithm.words, &found[i].algo, sizeof(algorithm.words));
    algorithm.workspace_bytes = found[i].workspaceSize;
    result.push_back(algorithm);
  }
  return result;
}

// Returns at most `count` suggestions. With `activation_apart` the epilogue has no activation; a
// separate pass over the output follows.
template <class T>
std::vector<CublasltAlgorithm> suggestions(const GemmArguments& a, size_t count, Rounding rounding,
                                           bool activation_apart, const Stream& stream) {
  const Activation fused = activation_apart ? Activation::kNone : a.activation;
  Problem p;
  describe<T>(a, fused, p);
  const bool may_round_twice = !std::is_same_v<T, float> && (a.bias || fused != Activation::kNone);
  auto found = ask<T>(a, p, !may_round_twice || rounding == Rounding::kUnknown, stream);
  if (may_round_twice && rounding == Rounding::kUnknown) {  // in case none of these rounds once
    for (const CublasltAlgorithm& unsplit : ask<T>(a, p, false, stream)) {
      const auto same = [&](const CublasltAlgorithm& other) {
        return std::equal(unsplit.words, std::end(unsplit.words), other.words);
      };
      if (std::none_of(found.begin(), found.end(), same)) found.push_back(unsplit);
    }
  }
  if (found.size() > count) found.resize(count);
  for (CublasltAlgorithm& algorithm : found) algorithm.activation_apart = activation_apart;
  return found;
}

}  // namespace

size_t cublaslt_version() {
  return cublasLtGetVersion();
}

template <class T>
std::vector<CublasltAlgorithm> cublaslt_algorithms(const GemmArguments& a, size_t count,
                                                   Rounding rounding, const Stream& stream) {
  if (a.both) return cublaslt_algorithms<T>(ungated(a), count, rounding, stream);
  if (!cublaslt_fits(a)) return {};
  std::vector<CublasltAlgorithm> found;
  if (in_epilogue<T>(a.activation)) {
    found = suggestions<T>(a, count, rounding, false, stream);
  }
  if (found.empty() && a.activation != Activation::kNone) {
    found = suggestions<T>(a, count, rounding, true, stream);
  }
  return found;
}

#define INSTANTIATE(T)                                                                         \
  template std::vector<CublasltAlgorithm> cublaslt_algorithms<T>(const GemmArguments&, size_t, \
                                                                 Rounding, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
