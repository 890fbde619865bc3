// GEMM: out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + residual, by the implementation
// that was fastest when the product was first seen (gemm_choice.h). Tensor cores read weights with
// k innermost, which is how checkpoints store them: packing is a copy.
#include "core/raw_memory.h"
#include "cuda/cublaslt_gemm.h"
#include "cuda/element.h"
#include "cuda/gemm_choice.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/plain_gemm.h"

namespace fusewire::cuda {

template <class T>
size_t pack_weight_bytes(int64_t n, int64_t k) {
  return round_up(static_cast<size_t>(n * k) * sizeof(T), 16);
}

template <class T>
bool packing_copies() {
  return true;
}

template <class T>
void pack_weight(void* packed, const void* weight, int64_t n, int64_t k, const Stream& stream) {
  check(cudaMemcpyAsync(packed, weight, static_cast<size_t>(n * k) * sizeof(T), cudaMemcpyDefault,
                        handle(stream)),  // from the host too
        "pack_weight");
}

template <class T>
void gemm(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* packed,
          const void* bias, const void* residual, int64_t residual_stride, int64_t m, int64_t n,
          int64_t k, Activation activation, const Stream& stream) {
  if (m == 1) {  // nobody steps to a second row: let no odd stride rule the fast kernels out
    x_stride = static_cast<int64_t>(round_up(static_cast<size_t>(k), 16));
    out_stride = residual_stride = static_cast<int64_t>(round_up(static_cast<size_t>(n), 16));
  }
  const GemmArguments a = {out,      out_stride,      x, x_stride, packed, bias,
                           residual, residual_stride, m, n,        k,      activation};
  if (run_gemm<T>(a, choose_gemm<T>(a, stream), stream)) return;
  // What suits the bucket does not always suit each of its products, nor a neighbour's choice.
  for (const CublasltAlgorithm& algorithm : cublaslt_algorithms<T>(a, 1, Rounding::kOnce, stream)) {
    if (cublaslt_gemm<T>(a, algorithm, stream)) return;
  }
  plain_gemm<T>(a, stream);
}

#define INSTANTIATE(T)                                                                  \
  template size_t pack_weight_bytes<T>(int64_t, int64_t);                               \
  template bool packing_copies<T>();                                                    \
  template void pack_weight<T>(void*, const void*, int64_t, int64_t, const Stream&);    \
  template void gemm<T>(void*, int64_t, const void*, int64_t, const void*, const void*, \
                        const void*, int64_t, int64_t, int64_t, int64_t, Activation,    \
                        const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
