// Adam on flat parameters, in one pass over memory, which bounds its speed.
#include "core/adam.h"

#include <cmath>

#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/columns.h"
#include "cpu/stochastic_rounding.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task

// The constants of a segment's elements, in the order of operations of torch.optim.Adam.
struct Step {
  float beta1_rest, beta2, beta2_rest;  // rest: 1 - beta
  float step_size, correction, eps;     // correction: 1 / sqrt(1 - beta2^step)
  float shrink, decay;                  // factor of the parameter; decay added to the gradient
  float gradient_scale;
};

Step step_of(const AdamArguments& a, int64_t segment) {
  const double rate = a.rates[segment], decay = a.decays[segment];
  return {static_cast<float>(1.0 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1.0 - a.beta2),
          static_cast<float>(rate * a.factors[1]),
          a.factors[2],
          static_cast<float>(a.eps),
          a.decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0f,
          a.decoupled ? 0.0f : static_cast<float>(decay),
          a.factors[0]};
}

FUSEWIRE_INLINE Vec square_root(Vec x) {
  Vec root;
  for (int i = 0; i < kLanes; ++i) root[i] = __builtin_sqrtf(x[i]);
  return root;
}

// Parameters in fp32, and their shadow.
struct Floats {
  float *parameters, *shadow;

  Floats(const AdamArguments& a, int64_t begin)
      : parameters(static_cast<float*>(a.parameters) + begin),
        shadow(a.shadow ? static_cast<float*>(a.shadow) + begin : nullptr) {}
  FUSEWIRE_INLINE Vec get(int64_t c, int64_t count) const { return read(parameters + c, count); }
  FUSEWIRE_INLINE void put(int64_t c, Vec after, int64_t count) const {
    write(parameters + c, after, count);
    if (shadow) write(shadow + c, after, count);
  }
};

// Parameters in bfloat16, without fp32 ones beside them.
struct Halves {
  uint16_t* parameters;
  int64_t first;
  RoundingNumbers numbers;

  Halves(const AdamArguments& a, int64_t begin)
      : parameters(static_cast<uint16_t*>(a.parameters) + begin),
        first(a.first + begin),
        numbers(static_cast<uint32_t>(a.factors[3])) {}
  FUSEWIRE_INLINE Vec get(int64_t c, int64_t count) const {
    return floats_of(widened(parameters + c, count) << 16);
  }
  FUSEWIRE_INLINE void put(int64_t c, Vec after, int64_t count) {
    const WordVec bits = bits_of(after);
    const WordVec rounded = bits + numbers.get(first + c, count);
    const WordVec kept = (after != after ? bits | kQuietNan : rounded) >> 16;
    const HalfVec halves = __builtin_convertvector(kept, HalfVec);
    if (count == kLanes) {
      *reinterpret_cast<HalfVec*>(parameters + c) = halves;
    } else {
      for (int64_t i = 0; i < count; ++i) parameters[c + i] = halves[i];
    }
  }
};

template <class Parameters>
void update(const AdamArguments& a, const Step& s, int64_t begin, int64_t end) {
  Parameters parameters(a, begin);
  float *averages = a.exp_avg + begin, *squares = a.exp_avg_sq + begin;
  const float* gradients = a.gradients + begin;
  for_columns(end - begin, [&](int64_t c, int64_t count) {
    const Vec before = parameters.get(c, count), parameter = before * s.shrink;
    const Vec gradient = read(gradients + c, count) * s.gradient_scale + before * s.decay;
    const Vec old = read(averages + c, count);
    const Vec average = old + (gradient - old) * s.beta1_rest;
    const Vec square = read(squares + c, count) * s.beta2 + gradient * gradient * s.beta2_rest;
    const Vec deviation = square_root(square) * s.correction + s.eps;
    write(averages + c, average, count);
    write(squares + c, square, count);
    parameters.put(c, parameter - average * s.step_size / deviation, count);
  });
}

// Returns the last segment that begins at or before `element`.
int64_t segment_at(const AdamArguments& a, int64_t element) {
  int64_t first = 0, beyond = a.segment_count;
  while (beyond - first > 1) {
    const int64_t middle = (first + beyond) / 2;
    (a.segments[middle] <= element ? first : beyond) = middle;
  }
  return first;
}

}  // namespace

void adam(const AdamArguments& a, const Stream&) {
  if (std::isnan(a.factors[0])) return;
  const auto updated = a.half ? update<Halves> : update<Floats>;
  parallel_for(a.count, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t segment = segment_at(a, begin); begin < end; ++segment) {
      const int64_t border = a.segments[segment + 1], stop = border < end ? border : end;
      if (stop > begin) updated(a, step_of(a, segment), begin, stop);
      begin = stop;
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
