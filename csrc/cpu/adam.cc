// Adam on flat parameters, in one pass over memory, which bounds its speed.
#include "core/adam.h"

#include <cmath>

#include "core/kernels.h"
#include "core/stochastic_rounding.h"
#include "core/threads.h"
#include "cpu/bfloat16.h"
#include "cpu/columns.h"
#include "cpu/philox.h"

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

typedef uint16_t HalfVec
    __attribute__((vector_size(FUSEWIRE_VEC_BYTES / 2), aligned(2), may_alias));

// Returns `count` 16-bit numbers in 32 bits; the other lanes are 0.
FUSEWIRE_INLINE WordVec widened(const uint16_t* p, int64_t count) {
  if (count == kLanes) {
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(p), WordVec);
  }
  WordVec v{};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
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

// The 16-bit numbers by which elements are rounded (core/stochastic_rounding.h), kLanes groups of
// them at a time.
class RoundingNumbers {
 public:
  explicit RoundingNumbers(uint32_t step) : step_(step) {}

  // The numbers of the `count` elements from `at` on.
  FUSEWIRE_INLINE WordVec get(int64_t at, int64_t count) {
    if (at < begin_ || at + count > begin_ + kKept) make(at / kRoundingGroup);
    return widened(numbers_ + (at - begin_), count);
  }

 private:
  static constexpr int64_t kKept = kLanes * kRoundingGroup;

  void make(int64_t group) {
    begin_ = group * kRoundingGroup;
    uint32_t low[kLanes], high[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t own = static_cast<uint64_t>(group + lane);
      low[lane] = static_cast<uint32_t>(own);
      high[lane] = static_cast<uint32_t>(own >> 32);
    }
    UintVec words[4] = {load_words(low), load_words(high), UintVec{} + step_, UintVec{}};
    philox(kRoundingKey, words);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int word = 0; word < 4; ++word) {
        uint16_t* to = numbers_ + lane * kRoundingGroup + 2 * word;
        to[0] = static_cast<uint16_t>(words[word][lane]);
        to[1] = static_cast<uint16_t>(words[word][lane] >> 16);
      }
    }
  }

  uint32_t step_;
  int64_t begin_ = -kKept;
  uint16_t numbers_[kKept];
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
