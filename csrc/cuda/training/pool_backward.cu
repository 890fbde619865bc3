// The gradient of pooling: distributes the gradient of a sequence's vector to its tokens.
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

// A block has 32 columns of one sequence; its warps take the tokens in turn. The block after those
// of the sequences writes zeros to the rows beyond the last sequence, which a bucket may have.
constexpr int kPoolWarps = 8;

template <class T>
__global__ void __launch_bounds__(kPoolWarps* kWarp)
    pool_gradients(T* dx, int64_t dx_stride, const T* dy, int64_t dy_stride, const T* x,
                   int64_t x_stride, const int32_t* offsets, int64_t tokens, int64_t hidden,
                   Pooling pooling) {
  __shared__ float tops[kPoolWarps][kWarp];
  __shared__ int64_t places[kPoolWarps][kWarp];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kWarp + lane;
  const bool beyond = blockIdx.x + 1 == gridDim.x;
  const int64_t begin = offsets[blockIdx.x], end = beyond ? tokens : offsets[blockIdx.x + 1];
  const bool inside = c < hidden;
  int64_t only = pooling == Pooling::kCls ? begin : end - 1;  // the token that receives the whole
                                                              // gradient
  if (pooling == Pooling::kMax && !beyond) {
    // The first of the largest; NaN counts as the largest, so that it is not lost.
    const auto better = [](float a, int64_t at, float b, int64_t other) {  // whether a is better
                                                                           // than b
      const bool above = a > b || (isnan(a) && !isnan(b));
      const bool equal = a == b || (isnan(a) && isnan(b));
      return other < 0 || (at >= 0 && (above || (equal && at < other)));
    };
    float top = 0.0f;
    int64_t place = -1;
    for (int64_t t = begin + warp; t < end && inside; t += kPoolWarps) {
      const float v = to_float(x[t * x_stride + c]);
      if (better(v, t, top, place)) top = v, place = t;
    }
    tops[warp][lane] = top;
    places[warp][lane] = place;
    __syncthreads();
    top = tops[0][lane], only = places[0][lane];
#pragma unroll
    for (int w = 1; w < kPoolWarps; ++w) {
      if (better(tops[w][lane], places[w][lane], top, only)) {
        top = tops[w][lane], only = places[w][lane];
      }
    }
  }
  if (!inside) return;
  float d = beyond ? 0.0f : to_float(dy[blockIdx.x * dy_stride + c]);
  const bool shared = beyond || pooling == Pooling::kMean;
  if (pooling == Pooling::kMean && !beyond) d /= static_cast<float>(end - begin);
  for (int64_t t = begin + warp; t < end; t += kPoolWarps) {
    dx[t * dx_stride + c] = from_float<T>(shared || t == only ? d : 0.0f);
  }
}

}  // namespace

template <class T>
void pool_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride, const void* x,
                   int64_t x_stride, const SequenceBatch& batch, int64_t hidden, Pooling pooling,
                   const Stream& stream) {
  const dim3 grid(static_cast<unsigned>(batch.sequences() + 1),
                  static_cast<unsigned>((hidden + kWarp - 1) / kWarp));
  launch(pool_gradients<T>, grid, kPoolWarps * kWarp, 0, stream, static_cast<T*>(dx), dx_stride,
         static_cast<const T*>(dy), dy_stride, static_cast<const T*>(x), x_stride,
         batch.device_offsets(), batch.tokens(), hidden, pooling);
}

#define INSTANTIATE(T)                                                                       \
  template void pool_backward<T>(void*, int64_t, const void*, int64_t, const void*, int64_t, \
                                 const SequenceBatch&, int64_t, Pooling, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
