// The survey reads the logits once. A block holds a segment of a row in registers. Each warp sums
// the exponentials of its part relative to its own largest logit, so that it waits for the others
// only once, after these sums.
#include "cuda/activation.h"
#include "cuda/launch.h"
#include "cuda/sampling/beam_survey.h"

namespace fusewire::cuda {
namespace {

constexpr int kWarps = kSurveyThreads / kWarp;

template <class T>
struct Pair;
template <>
struct Pair<__half> {
  using Type = __half2;
};
template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

// Returns the largest element of a thread, or NaN if one is NaN. Elements of 16 bits are compared
// two at a time.
template <class T>
__device__ __forceinline__ float largest(const Held<T>& held) {
  float most = -INFINITY;
  if constexpr (sizeof(T) == 2) {
    using P = typename Pair<T>::Type;
    const P* const pairs = reinterpret_cast<const P*>(held.vectors);
    P two = pairs[0];
#pragma unroll
    for (int i = 1; i < kHeld / 2; ++i) two = __hmax2_nan(two, pairs[i]);
    most = MaxOrNan{}(to_float(two.x), to_float(two.y));
  } else {
    held.for_each([&](float value, int) { most = MaxOrNan{}(most, value); });
  }
  return most;
}

// With 16-bit elements, a multiprocessor has registers for as many threads as it can hold.
template <class T>
__global__ void __launch_bounds__(kSurveyThreads, sizeof(T) == 2 ? 8 : 5)
    survey_segments(const BeamArguments a, const Survey survey) {
  __shared__ Softmax warps[kWarps];
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x / survey.segments;
  const int segment = static_cast<int>(blockIdx.x % survey.segments), t = threadIdx.x;
  const int lane = t % kWarp;
  Held<T> held;
  held.load(segment_of<T>(a, row, segment), segment_cols(a, segment), t);
  if (a.beam_scores[row] == -INFINITY) return;
  float top = reduce_lanes<kStripLanes>(largest(held), MaxOrNan{});
  if (t % kStripLanes == 0) {
    survey.maxima[static_cast<int64_t>(blockIdx.x) * kStrips + t / kStripLanes] = top;
  }
  top = reduce_lanes<kWarp>(top, MaxOrNan{});
  float sums[4] = {};
  if (!a.normalized && top > -INFINITY) {
    held.for_each([&](float value, int i) { sums[i % 4] += exp_for<T>(value - top); });
  }
  const float sum = reduce_lanes<kWarp>((sums[0] + sums[1]) + (sums[2] + sums[3]), Sum{});
  if (lane == 0) warps[t / kWarp] = {top, sum};
  __syncthreads();
  if (t >= kWarp) return;
  const Softmax own = warps[lane % kWarps];
  const float most = reduce_lanes<kWarps>(own.most, MaxOrNan{});
  const float share = own.most > -INFINITY ? own.sum * expf(own.most - most) : 0.0f;
  const float all = reduce_lanes<kWarps>(share, Sum{});
  if (t == 0) survey.parts[blockIdx.x] = {most == INFINITY ? NAN : most, all};
}

}  // namespace

template <class T>
void survey_logits(const BeamArguments& a, const Survey& survey, const Stream& stream) {
  if (a.rows == 0) return;
  launch(survey_segments<T>, dim3(static_cast<unsigned>(a.rows * survey.segments)), kSurveyThreads,
         0, stream, a, survey);
}

#define INSTANTIATE(T) \
  template void survey_logits<T>(const BeamArguments&, const Survey&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
