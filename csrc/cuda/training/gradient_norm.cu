// Sums of squares of a flat gradient, one for each block. adam_factors adds them up, in a fixed
// order, with those of other gradients.
#include <algorithm>

#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

constexpr int kNormBlock = 256, kNormWarps = kNormBlock / kWarp;

struct SquareSum {
  double squares;
  double broken;  // the number of NaNs and infinities
};

__device__ __forceinline__ void add(SquareSum& sum, float x) {
  sum.squares += static_cast<double>(x) * x;
  sum.broken += isfinite(x) ? 0.0 : 1.0;
}

// Returns the sum over a block, in thread 0.
__device__ __forceinline__ SquareSum sum_of_block(SquareSum sum) {
  __shared__ SquareSum sums[kNormWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum.squares += __shfl_xor_sync(kWholeWarp, sum.squares, distance);
    sum.broken += __shfl_xor_sync(kWholeWarp, sum.broken, distance);
  }
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return sum;
#pragma unroll
  for (int w = 1; w < kNormWarps; ++w) {
    sum.squares += sums[w].squares;
    sum.broken += sums[w].broken;
  }
  return sum;
}

// `lead` elements come before the first 16-byte vector; block 0 adds them and the last elements.
__global__ void __launch_bounds__(kNormBlock)
    sum_squares(float* out, const float* x, int64_t lead, int64_t vectors, int64_t count) {
  constexpr int kTogether = 4;
  let_next_start();
  wait_for_inputs();
  SquareSum sum = {};
  unsigned broken = 0;  // counted in integers in the main loop: fp64 is slow on many devices
  const auto add_vector = [&](const float4& v) {
    sum.squares += static_cast<double>(v.x) * v.x;
    sum.squares += static_cast<double>(v.y) * v.y;
    sum.squares += static_cast<double>(v.z) * v.z;
    sum.squares += static_cast<double>(v.w) * v.w;
    broken += !isfinite(v.x) + !isfinite(v.y) + !isfinite(v.z) + !isfinite(v.w);
  };
  const float4* from = reinterpret_cast<const float4*>(x + lead);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kNormBlock;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kNormBlock + threadIdx.x;
  for (; i + (kTogether - 1) * step < vectors; i += kTogether * step) {
    float4 v[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) v[j] = from[i + j * step];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) add_vector(v[j]);
  }
  for (; i < vectors; i += step) add_vector(from[i]);
  sum.broken = broken;
  if (blockIdx.x == 0) {
    if (threadIdx.x < lead) add(sum, x[threadIdx.x]);
    const int64_t rest = lead + 4 * vectors + threadIdx.x;
    if (rest < count) add(sum, x[rest]);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x > 0) return;
  out[2 * blockIdx.x] = static_cast<float>(sum.squares);
  out[2 * blockIdx.x + 1] = static_cast<float>(sum.broken);
}

}  // namespace

template <class T>
void gradient_norm(float* out, int64_t parts, const float* gradients, int64_t count,
                   const Stream& stream) {
  const int64_t misaligned = reinterpret_cast<uintptr_t>(gradients) % 16 / sizeof(float);
  const int64_t lead = std::min(count, (4 - misaligned) % 4), vectors = (count - lead) / 4;
  launch(sum_squares, static_cast<unsigned>(parts), kNormBlock, 0, stream, out, gradients, lead,
         vectors, count);
}

#define INSTANTIATE(T) \
  template void gradient_norm<T>(float*, int64_t, const float*, int64_t, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
