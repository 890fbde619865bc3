#include "cuda/activation.h"
#include "cuda/element.h"
#include "cuda/gemm/plain_gemm.h"
#include "cuda/gemm/quantize_rows.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

constexpr int kTile = 16;  // rows and columns of the output per block, one element per thread

// Returns the scale of e4m3 sums at k of a row and a column.
__device__ __forceinline__ float block_scale(const GemmArguments& a, int64_t row, int64_t column,
                                             int64_t k) {
  const int64_t block = k / kFloat8Block;
  const float x = static_cast<const float*>(a.x.scales)[block * block_scale_stride(a.m) + row];
  return x * static_cast<const float*>(
                 a.weight.scales)[column / kFloat8Block * float8_blocks(a.k) + block];
}

// A block computes a tile; its parts of x and weight, of type Element, are staged in shared memory.
template <class T, class Element>
__global__ void __launch_bounds__(kTile* kTile) gemm_kernel(GemmArguments a) {
  let_next_start();
  wait_for_inputs();
  __shared__ float x[kTile][kTile + 1], weight[kTile][kTile + 1];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTile + ty;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kTile, column = first_column + tx;
  const Element* x_row = static_cast<const Element*>(a.x.data) + row * a.x.stride;
  const int64_t weight_step = a.weight.transposed ? a.weight.stride : 1;  // along k
  const Element* weight_row = static_cast<const Element*>(a.weight.data) +
                              (first_column + ty) * (a.weight.transposed ? 1 : a.weight.stride);
  float sum = 0.0f;
  for (int64_t k = 0; k < a.k; k += kTile) {
    const bool inside = k + tx < a.k;
    x[ty][tx] = inside && row < a.m ? to_float(x_row[k + tx]) : 0.0f;
    weight[ty][tx] =
        inside && first_column + ty < a.n ? to_float(weight_row[(k + tx) * weight_step]) : 0.0f;
    __syncthreads();
    float part = 0.0f;  // a separate sum: rounding errors grow with the length of a chain of
                        // additions
#pragma unroll
    for (int i = 0; i < kTile; ++i) part += x[ty][i] * weight[tx][i];
    sum += a.blocks && row < a.m && column < a.n ? part * block_scale(a, row, column, k) : part;
    __syncthreads();
  }
  if (row >= a.m || column >= a.n) return;
  if (a.x.scales && !a.blocks) {
    sum = __fmul_rn(sum, static_cast<const float*>(a.x.scales)[row]);
    sum = __fmul_rn(sum, static_cast<const float*>(a.weight.scales)[column]);
  }
  if (a.bias) sum += to_float(static_cast<const T*>(a.bias)[column]);
  sum = activated<T>(sum, a.activation);
  if (a.residual) {
    sum += to_float(static_cast<const T*>(a.residual)[row * a.residual_stride + column]);
  }
  static_cast<T*>(a.out)[row * a.out_stride + column] = from_float<T>(sum);
}

}  // namespace

template <class T>
void plain_gemm(const GemmArguments& a, const Stream& stream) {
  const auto tiles = [](int64_t size) { return static_cast<unsigned>((size + kTile - 1) / kTile); };
  const auto kernel = a.x.scales ? gemm_kernel<T, __nv_fp8_e4m3> : gemm_kernel<T, T>;
  launch(kernel, dim3(tiles(a.m), tiles(a.n)), dim3(kTile, kTile), 0, stream, a);
}

#define INSTANTIATE(T) template void plain_gemm<T>(const GemmArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
