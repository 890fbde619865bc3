#include <algorithm>

#include "core/allocator.h"
#include "cuda/element.h"
#include "cuda/gemm/gemm_rounding.h"
#include "cuda/gemm/plain_gemm.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

constexpr int64_t kRows = 32;  // rows that are compared: plain_gemm is slow
// The largest part of the elements that may differ from the reference. If sums are rounded twice
// 0.27 of them differ; if they are added in another order at most 0.05, at k = 16384.
constexpr double kMostOtherwise = 0.125;

// Counts the elements in which out differs from reference, which is dense.
template <class T>
__global__ void count_kernel(unsigned* different, const T* out, int64_t stride, const T* reference,
                             int64_t rows, int64_t cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned found = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols;
       i += step) {
    found += to_float(out[i / cols * stride + i % cols]) != to_float(reference[i]);
  }
  if (found) atomicAdd(different, found);
}

}  // namespace

template <class T>
bool rounds_once(const GemmArguments& product, const GemmChoice& chosen, const Stream& stream) {
  GemmArguments a = product;
  GemmChoice choice = chosen;
  a.activation = Activation::kNone;
  choice.algorithm.activation_apart = false;
  GemmArguments some = a;
  some.m = std::min(a.m, kRows);
  some.out_stride = a.n;
  const int64_t elements = some.m * a.n;
  const auto memory =
      default_allocator(stream.device)
          .allocate(static_cast<size_t>(elements) * sizeof(T) + sizeof(unsigned), "tuning", stream);
  auto* otherwise = static_cast<unsigned*>(memory.get());
  some.out = otherwise + 1;
  check(cudaMemsetAsync(otherwise, 0, sizeof(unsigned), handle(stream)), "rounding");
  plain_gemm<T>(some, stream);
  if (!run_gemm<T>(a, choice, stream)) return false;
  count_kernel<<<64, 256, 0, handle(stream)>>>(otherwise, static_cast<const T*>(a.out),
                                               a.out_stride, static_cast<const T*>(some.out),
                                               some.m, a.n);
  check(cudaGetLastError(), "rounding");
  unsigned count = 0;
  check(cudaMemcpyAsync(&count, otherwise, sizeof(count), cudaMemcpyDeviceToHost, handle(stream)),
        "rounding");
  check(cudaStreamSynchronize(handle(stream)), "rounding");
  return count <= kMostOtherwise * static_cast<double>(elements);
}

#define INSTANTIATE(T) \
  template bool rounds_once<T>(const GemmArguments&, const GemmChoice&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
