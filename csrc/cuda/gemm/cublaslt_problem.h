// Describes a product to cuBLASLt. The library uses column-major matrices: the row-major out[m, n]
// is its out^T[n, m], so the product is weight (transposed, unless it is stored so) times x. The
// weight is its A, x its B, the residual its C, out its D.
#pragma once

#include <cublasLt.h>

#include <mutex>
#include <type_traits>

#include "core/error.h"
#include "cuda/element.h"
#include "cuda/gemm/cublaslt_gemm.h"

namespace fusewire::cuda::cublaslt {

// Enough for split-K sums of small products; large products need none.
constexpr size_t kWorkspaceBytes = size_t{8} << 20;

inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    if (status == CUBLAS_STATUS_ALLOC_FAILED) {
      fail_out_of_memory("the GPU", "cuBLASLt ", what, ": got ", cublasLtGetStatusName(status),
                         ", wanted success; free some of its memory, or use less");
    }
    fail_as(ErrorKind::kDevice, "cuBLASLt ", what, ": got ", cublasLtGetStatusName(status),
            ", wanted success; run with CUBLASLT_LOG_LEVEL=5 to see the call");
  }
}

template <class T>
inline constexpr cudaDataType_t kType = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t kType<__half> = CUDA_R_16F;
template <>
inline constexpr cudaDataType_t kType<__nv_bfloat16> = CUDA_R_16BF;

// Returns the handle of a device, which lives as long as the process. Threads may share it.
inline cublasLtHandle_t library(const Stream& stream) {
  constexpr int kDevices = 64;
  static std::once_flag made[kDevices];
  static cublasLtHandle_t handles[kDevices];
  const int index = stream.device.index;
  if (index < 0 || index >= kDevices) fail("device: got ", index, ", wanted 0 to ", kDevices - 1);
  std::call_once(made[index], [&] { check(cublasLtCreate(&handles[index]), "handle"); });
  return handles[index];
}

template <class T>
bool in_epilogue(Activation activation) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return true;
    case Activation::kGeluTanh:  // it uses an approximate tanh, precise enough for half precision
      return !std::is_same_v<T, float>;
    default:
      return false;
  }
}

inline cublasLtEpilogue_t epilogue_of(Activation activation, bool bias) {
  const int flag = bias ? CUBLASLT_EPILOGUE_BIAS : 0;
  if (activation == Activation::kRelu) {
    return static_cast<cublasLtEpilogue_t>(CUBLASLT_EPILOGUE_RELU | flag);
  }
  if (activation == Activation::kGeluTanh) {
    return static_cast<cublasLtEpilogue_t>(CUBLASLT_EPILOGUE_GELU | flag);
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The descriptors are on the caller's stack: filling them takes a fraction of a microsecond, and
// they contain the pointer to this call's bias.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, residual, out;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)),
          "operation");
  }
};

template <class T>
void describe(const GemmArguments& a, Activation fused, Problem& p) {
  check(cublasLtMatmulDescInit(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
  const bool stored_transposed = a.weight.transposed;
  p.set(CUBLASLT_MATMUL_DESC_TRANSA, stored_transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
  const cublasLtEpilogue_t epilogue = epilogue_of(fused, a.bias);
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (a.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, a.bias);
  cudaDataType_t operands = kType<T>;
  if (a.x.scales) {
    operands = CUDA_R_8F_E4M3;
    constexpr int32_t kByRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    constexpr int32_t kOfWeight = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    constexpr int32_t kOfRow = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    p.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a.blocks ? kOfWeight : kByRow);
    p.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, a.blocks ? kOfRow : kByRow);
    p.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a.weight.scales);
    p.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a.x.scales);
  }
  check(cublasLtMatrixLayoutInit(&p.weight, operands, stored_transposed ? a.n : a.k,
                                 stored_transposed ? a.k : a.n, a.weight.stride),
        "weight");
  check(cublasLtMatrixLayoutInit(&p.x, operands, a.k, a.m, a.x.stride), "x");
  check(cublasLtMatrixLayoutInit(&p.out, kType<T>, a.n, a.m, a.out_stride), "out");
  p.residual = p.out;
  if (a.residual && a.residual_stride != a.out_stride) {
    check(cublasLtMatrixLayoutInit(&p.residual, kType<T>, a.n, a.m, a.residual_stride), "residual");
  }
}

}  // namespace fusewire::cuda::cublaslt
