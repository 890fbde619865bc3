// Gradients of activations and gated units, from the activation's input.
#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

int64_t grain_rows(int64_t cols) {
  return rows_of_a_task(cols) + 1;
}

// Beyond these limits every derivative below is 0 or 1 in fp32, and squares stay finite. NaN stays
// NaN.
FUSEWIRE_INLINE Vec clamped(Vec x) {
  const Vec limit = broadcast(32.0f);
  return x > limit ? limit : (x < -limit ? -limit : x);
}

struct Logistic {
  Vec value, slope;
};

// Returns 1 / (1 + e^-x) and its derivative, which would lose digits if computed from 1 - value.
FUSEWIRE_INLINE Logistic logistic(Vec x) {
  const Vec e = exp(min(x, -x));
  const Vec r = 1.0f / (1.0f + e);
  return {x < 0.0f ? e * r : r, e * r * r};
}

template <Activation kActivation>
FUSEWIRE_INLINE Vec derivative(Vec any) {
  const Vec x = clamped(any);
  if constexpr (kActivation == Activation::kGeluErf) {  // Phi(x) + x phi(x)
    return 0.5f * (1.0f + erf(x * 0.707106781f)) + x * exp(x * x * -0.5f) * 0.398942280f;
  }
  if constexpr (kActivation == Activation::kGeluTanh) {  // derivative of x / (1 + e^-y)
    const Logistic s = logistic(x * (1.595769122f + 0.0713548163f * x * x));
    return s.value + x * s.slope * (1.595769122f + 0.2140644488f * x * x);
  }
  if constexpr (kActivation == Activation::kSilu) {
    const Logistic s = logistic(x);
    return s.value + x * s.slope;
  }
  if constexpr (kActivation == Activation::kTanh) {
    return x != x ? x : 4.0f * logistic(2.0f * x).slope;
  }
  if constexpr (kActivation == Activation::kRelu) {
    return x <= 0.0f ? Vec{} : broadcast(1.0f);
  }
  return broadcast(1.0f);
}

template <Activation kActivation>
struct Name {
  static constexpr Activation value = kActivation;
};

// Calls body(Name<...>), so that loops are compiled for each activation.
template <class Body>
void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kNone:
      return body(Name<Activation::kNone>{});
    case Activation::kGeluErf:
      return body(Name<Activation::kGeluErf>{});
    case Activation::kGeluTanh:
      return body(Name<Activation::kGeluTanh>{});
    case Activation::kRelu:
      return body(Name<Activation::kRelu>{});
    case Activation::kSilu:
      return body(Name<Activation::kSilu>{});
    case Activation::kTanh:
      return body(Name<Activation::kTanh>{});
  }
}

}  // namespace

void column_sums(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 bool accumulate, const Stream& stream);

void activate_backward(void* dx, int64_t dx_stride, float* sums, const void* dy, int64_t dy_stride,
                       const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                       Activation activation, bool accumulate, const Stream& stream) {
  with_activation(activation, [&](auto name) {
    parallel_for(rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* to = static_cast<float*>(dx) + r * dx_stride;
        const float* d = static_cast<const float*>(dy) + r * dy_stride;
        const float* from = static_cast<const float*>(x) + r * x_stride;
        for_columns(cols, [&](int64_t c, int64_t count) {
          write(to + c, read(d + c, count) * derivative<name.value>(read(from + c, count)), count);
        });
      }
    });
  });
  if (sums) column_sums(sums, dx, dx_stride, rows, cols, accumulate, stream);
}

void gate_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride, const void* x,
                   int64_t x_stride, int64_t rows, int64_t cols, Activation activation,
                   const Stream&) {
  with_activation(activation, [&](auto name) {
    parallel_for(rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* to = static_cast<float*>(dx) + r * dx_stride;
        const float* d = static_cast<const float*>(dy) + r * dy_stride;
        const float* from = static_cast<const float*>(x) + r * x_stride;
        for_columns(cols, [&](int64_t c, int64_t count) {
          const Vec a = read(from + c, count), factor = read(from + cols + c, count);
          const Vec g = read(d + c, count);
          write(to + c, g * factor * derivative<name.value>(a), count);
          write(to + cols + c, g * activated(a, name.value), count);
        });
      }
    });
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
