// Computes the factors of an Adam step from the gradients of all parameters. One block does it on
// the device, so that the host does not synchronise and a captured step computes them at each
// replay.
#include <cmath>

#include "core/adam.h"
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

constexpr int kFactorsBlock = 256, kFactorsWarps = kFactorsBlock / kWarp;

__global__ void __launch_bounds__(kFactorsBlock) factors_of(AdamFactorsArguments a) {
  let_next_start();
  wait_for_inputs();
  double squares = 0, broken = 0;
#pragma unroll 8
  for (int64_t part = threadIdx.x; part < a.parts; part += kFactorsBlock) {
    squares += a.sums[2 * part];
    broken += a.sums[2 * part + 1];
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    squares += __shfl_xor_sync(kWholeWarp, squares, distance);
    broken += __shfl_xor_sync(kWholeWarp, broken, distance);
  }
  __shared__ double of_warps[2][kFactorsWarps];
  if (threadIdx.x % kWarp == 0) {
    of_warps[0][threadIdx.x / kWarp] = squares;
    of_warps[1][threadIdx.x / kWarp] = broken;
  }
  __syncthreads();
  squares = broken = 0;  // every thread adds up those of all warps
#pragma unroll
  for (int warp = 0; warp < kFactorsWarps; ++warp) {
    squares += of_warps[0][warp];
    broken += of_warps[1][warp];
  }
  const bool good = isfinite(squares) && squares > 0 && broken == 0;
  const double unscale = a.scale ? 1.0 / *a.scale : 1.0, norm = sqrt(squares) * unscale;
  const double clip = fmin(a.max_norm / (norm + kClipEps), 1.0);
  if (threadIdx.x == 0) {
    *a.norm = static_cast<float>(norm);
    if (!good) *a.skipped += 1.0f;
  }
  const float taken = good ? 1.0f : 0.0f;
  for (int64_t run = threadIdx.x; run < a.runs; run += kFactorsBlock) {
    const double steps = a.steps[a.firsts[run]] + taken;
    float* factors = a.factors + 4 * run;
    factors[0] = good ? static_cast<float>(clip * unscale) : NAN;
    factors[1] = static_cast<float>(-1.0 / expm1(steps * a.log_betas[2 * run]));
    factors[2] = static_cast<float>(1.0 / sqrt(-expm1(steps * a.log_betas[2 * run + 1])));
    factors[3] = static_cast<float>(steps);
  }
  __syncthreads();  // from here on the runs have read their step counts
  for (int64_t member = threadIdx.x; member < a.members; member += kFactorsBlock) {
    a.steps[member] += taken;
  }
}

}  // namespace

template <class T>
void adam_factors(const AdamFactorsArguments& a, const Stream& stream) {
  launch(factors_of, 1, kFactorsBlock, 0, stream, a);
}

#define INSTANTIATE(T) template void adam_factors<T>(const AdamFactorsArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
