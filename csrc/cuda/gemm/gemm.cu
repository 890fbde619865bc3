// Matrix products by the implementation that was fastest when they were timed (gemm_choice.h).
// A weight serves as it is stored, with k innermost or, transposed, n: packing is a copy. Our own
// kernels want k innermost; what is transposed is cuBLASLt's.
#include "core/raw_memory.h"
#include "cuda/element.h"
#include "cuda/gemm/cublaslt_gemm.h"
#include "cuda/gemm/gemm_choice.h"
#include "cuda/gemm/plain_gemm.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace fusewire::cuda {

namespace {

template <class T>
size_t packed_bytes(int64_t n, int64_t k) {
  return round_up(static_cast<size_t>(n * k) * sizeof(T), 16);
}

template <class T>
void pack(const PackArguments& a, const Stream& stream) {
  check(cudaMemcpyAsync(a.packed, a.weight, static_cast<size_t>(a.n * a.k) * sizeof(T),
                        cudaMemcpyDefault, handle(stream)),  // from the host too
        "pack");
}

template <class T>
void run(const GemmArguments& product, const Stream& stream) {
  GemmArguments a = product;
  if (a.m == 1) {  // nobody steps to a second row: let no odd stride rule the fast kernels out
    a.x.stride = static_cast<int64_t>(round_up(static_cast<size_t>(a.k), 16));
    a.out_stride = a.residual_stride = static_cast<int64_t>(round_up(static_cast<size_t>(a.n), 16));
  }
  if (run_gemm<T>(a, choose_gemm<T>(a, stream), stream)) return;
  // What suits the bucket does not always suit each of its products, nor a neighbour's choice.
  for (const CublasltAlgorithm& algorithm : cublaslt_algorithms<T>(a, 1, Rounding::kOnce, stream)) {
    if (cublaslt_gemm<T>(a, algorithm, stream)) return;
  }
  plain_gemm<T>(a, stream);
}

template <class T>
constexpr GemmKernels kTable[] = {
    {format_of(kDTypeOf<T>),
     {/*transposed_x=*/false, /*transposed_weight=*/true},
     /*packing_copies=*/true,
     /*packs_transposed=*/true,
     packed_bytes<T>,
     pack<T>,
     run<T>,
     gemm_bucket},
};

}  // namespace

template <class T>
const GemmKernels* gemm(Format format) {
  return kernels_of(kTable<T>, format);
}

#define INSTANTIATE(T) template const GemmKernels* gemm<T>(Format);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
