// Adam on flat parameters, and casts of fp32 values to the element type of the kernels. Each is one
// pass over memory, whose bandwidth bounds it.
#include <cmath>
#include <type_traits>

#include "core/adam.h"
#include "core/stochastic_rounding.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/training/weights_written.h"

namespace fusewire::cuda {
namespace {

constexpr int kAdamBlock = 256;

// Returns the last segment that begins at `element` or before it.
__device__ __forceinline__ int64_t segment_at(const AdamArguments& a, int64_t element) {
  int64_t first = 0, beyond = a.segment_count;
  while (beyond - first > 1) {
    const int64_t middle = (first + beyond) / 2;
    (a.segments[middle] <= element ? first : beyond) = middle;
  }
  return first;
}

// The coefficients of a segment's elements, computed in the order of operations of
// torch.optim.Adam.
struct Segment {
  int64_t at, end;
  float step_size, shrink, decay;  // shrink: of the parameter; decay: of the gradient

  __device__ __forceinline__ void load(const AdamArguments& a, float correction, int64_t segment) {
    at = segment;
    end = segment + 1 < a.segment_count ? a.segments[segment + 1] : a.count;
    const double rate = a.rates[segment], weight_decay = a.decays[segment];
    step_size = static_cast<float>(rate * correction);
    shrink = a.decoupled ? static_cast<float>(1.0 - rate * weight_decay) : 1.0f;
    decay = a.decoupled ? 0.0f : static_cast<float>(weight_decay);
  }
};

// kWidth neighbouring elements, `at` being the first one's place in the step's random numbers: they
// share a counter.
template <int kWidth>
__device__ __forceinline__ void store_rounded(Pack<__nv_bfloat16, kWidth>* to,
                                              const float (&after)[kWidth], int64_t at,
                                              uint32_t step) {
  static_assert(kRoundingGroup % kWidth == 0);
  const PhiloxWords words = rounding_words(at, step);
  Pack<__nv_bfloat16, kWidth> rounded;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const uint32_t bits =
        stochastically_rounded(__float_as_uint(after[j]), rounding_number(words, at + j));
    rounded.at[j] = __ushort_as_bfloat16(static_cast<unsigned short>(bits >> 16));
  }
  *to = rounded;
}

// A thread updates kWidth neighbouring elements, n times. Their loads are in flight while it looks
// for the segment of the first one. Parameters are float, or the bfloat16 of kHalf.
template <class T, bool kHalf, int kWidth, int n>
__global__ void __launch_bounds__(kAdamBlock) adam_elements(AdamArguments a) {
  using P = Pack<float, kWidth>;
  using Parameter = std::conditional_t<kHalf, __nv_bfloat16, float>;
  using Parameters = Pack<Parameter, kWidth>;
  wait_for_inputs();
  const float scale = a.factors[0], first_correction = a.factors[1];
  const float second_correction = a.factors[2];
  const float beta1_rest = static_cast<float>(1.0 - a.beta1), beta2 = static_cast<float>(a.beta2);
  const float beta2_rest = static_cast<float>(1.0 - a.beta2), eps = static_cast<float>(a.eps);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * n * kAdamBlock + threadIdx.x) * kWidth;
  Parameter* const parameters = static_cast<Parameter*>(a.parameters);
  Parameters values[n];
  P gradients[n], averages[n], squares[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int64_t e = first + i * kAdamBlock * kWidth;
    if (e >= a.count) continue;
    values[i] = *reinterpret_cast<const Parameters*>(parameters + e);
    gradients[i] = *reinterpret_cast<const P*>(a.gradients + e);
    averages[i] = *reinterpret_cast<const P*>(a.exp_avg + e);
    squares[i] = *reinterpret_cast<const P*>(a.exp_avg_sq + e);
  }
  if (first >= a.count || isnan(scale)) return;
  Segment segment;
  segment.load(a, first_correction, segment_at(a, first));
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int64_t e = first + i * kAdamBlock * kWidth;
    if (e >= a.count) continue;
    P after;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      while (e + j >= segment.end && segment.at + 1 < a.segment_count) {
        segment.load(a, first_correction, segment.at + 1);
      }
      const float before = to_float(values[i].at[j]);
      // Multiplied and added as written, in every instantiation: the bits of a parameter do not
      // depend on its dtype, nor on the alignment of the part that a process updates.
      const float gradient = fmaf(before, segment.decay, __fmul_rn(gradients[i].at[j], scale));
      const float old = averages[i].at[j], average = fmaf(gradient - old, beta1_rest, old);
      const float fresh = __fmul_rn(__fmul_rn(gradient, gradient), beta2_rest);
      const float square = fmaf(squares[i].at[j], beta2, fresh);
      const float deviation = fmaf(sqrtf(square), second_correction, eps);
      const float update = __fmul_rn(average, segment.step_size) / deviation;
      after.at[j] = fmaf(before, segment.shrink, -update);
      averages[i].at[j] = average;
      squares[i].at[j] = square;
    }
    *reinterpret_cast<P*>(a.exp_avg + e) = averages[i];
    *reinterpret_cast<P*>(a.exp_avg_sq + e) = squares[i];
    if constexpr (kHalf) {
      store_rounded(reinterpret_cast<Parameters*>(parameters + e), after.at, a.first + e,
                    static_cast<uint32_t>(a.factors[3]));
    } else {
      *reinterpret_cast<P*>(parameters + e) = after;
      if (a.shadow) {
        Pack<T, kWidth> shadow;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) shadow.at[j] = from_float<T>(after.at[j]);
        *reinterpret_cast<Pack<T, kWidth>*>(static_cast<T*>(a.shadow) + e) = shadow;
      }
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kAdamBlock) cast_elements(T* out, const float* x, int64_t count) {
  wait_for_inputs();
  const int64_t e = (static_cast<int64_t>(blockIdx.x) * kAdamBlock + threadIdx.x) * kWidth;
  if (e >= count) return;
  const Pack<float, kWidth> from = *reinterpret_cast<const Pack<float, kWidth>*>(x + e);
  Pack<T, kWidth> to;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to.at[j] = from_float<T>(from.at[j]);
  *reinterpret_cast<Pack<T, kWidth>*>(out + e) = to;
}

// The number of elements that are moved at a time, if count and alignment allow it.
constexpr int kFour = 4;

template <class T>
bool fours_fit(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % (kFour * sizeof(T)) == 0;
}

unsigned blocks_for(int64_t count, int64_t of_a_thread) {
  const int64_t of_a_block = of_a_thread * kAdamBlock;
  return static_cast<unsigned>((count + of_a_block - 1) / of_a_block);
}

template <class T, bool kHalf>
void launch_adam(const AdamArguments& a, bool parameters_fit, const Stream& stream) {
  constexpr int n = 2;
  const bool fours = parameters_fit && a.count % kFour == 0 && fours_fit<float>(a.gradients) &&
                     fours_fit<float>(a.exp_avg) && fours_fit<float>(a.exp_avg_sq);
  if (fours) {
    launch(adam_elements<T, kHalf, kFour, n>, blocks_for(a.count, kFour * n), kAdamBlock, 0, stream,
           a);
  } else {
    launch(adam_elements<T, kHalf, 1, n>, blocks_for(a.count, n), kAdamBlock, 0, stream, a);
  }
  end_weights(stream);
}

}  // namespace

template <class T>
void adam(const AdamArguments& a, const Stream& stream) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (a.half) {
      launch_adam<T, true>(a, fours_fit<T>(a.parameters) && a.first % kFour == 0, stream);
      return;
    }
  }
  launch_adam<T, false>(a, fours_fit<float>(a.parameters) && fours_fit<T>(a.shadow), stream);
}

template <class T>
void cast(void* out, const float* x, int64_t count, const Stream& stream) {
  if (count % kFour == 0 && fours_fit<float>(x) && fours_fit<T>(out)) {
    launch(cast_elements<T, kFour>, blocks_for(count, kFour), kAdamBlock, 0, stream,
           static_cast<T*>(out), x, count);
  } else {
    launch(cast_elements<T, 1>, blocks_for(count, 1), kAdamBlock, 0, stream, static_cast<T*>(out),
           x, count);
  }
  end_weights(stream);
}

#define INSTANTIATE(T)                                        \
  template void adam<T>(const AdamArguments&, const Stream&); \
  template void cast<T>(void*, const float*, int64_t, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
