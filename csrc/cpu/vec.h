// Vec: as many floats as one register of the target holds.
//
// Every kernel file is compiled once per instruction set. The compiler's vector types give one
// source for all of them, so the three targets differ in FUSEWIRE_VEC_BYTES and compiler flags
// alone. Whatever is instantiated here is in the target's namespace: otherwise the linker could
// keep the AVX-512 copy of a shared inline function for all targets.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/activation.h"

#define FUSEWIRE_INLINE inline __attribute__((always_inline))

namespace fusewire::FUSEWIRE_TARGET {

constexpr int kLanes = FUSEWIRE_VEC_BYTES / 4;

typedef float Vec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));
typedef int32_t IntVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));
typedef float UnalignedVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), aligned(4), may_alias));

FUSEWIRE_INLINE Vec load(const float* p) {
  return *reinterpret_cast<const UnalignedVec*>(p);
}
FUSEWIRE_INLINE void store(float* p, Vec v) {
  *reinterpret_cast<UnalignedVec*>(p) = v;
}
FUSEWIRE_INLINE Vec broadcast(float x) {
  return x - Vec{};
}

// Returns v, about which the compiler then knows nothing: what follows is computed from it in the
// order of the source. Otherwise clang merges sums of two kernels in different ways, and their bits
// differ.
FUSEWIRE_INLINE Vec opaque(Vec v) {
#ifdef __x86_64__
  asm("" : "+v"(v));
#endif
  return v;
}

// Returns a * b + c, rounded once where the target has such an instruction. By name, because clang
// would fuse one copy of a loop and not another.
FUSEWIRE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__clang__) && defined(__FMA__)
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Loads the first n < kLanes floats; the other lanes are `fill`, and their memory is not accessed.
FUSEWIRE_INLINE Vec load_first(const float* p, int64_t n, float fill = 0.0f) {
  Vec v = broadcast(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return opaque(v);  // or clang multiplies these lanes one by one and rounds before adding
}
FUSEWIRE_INLINE void store_first(float* p, Vec v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}

FUSEWIRE_INLINE Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
FUSEWIRE_INLINE Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}

// Returns the sum of the lanes, folded in halves, so that the order does not depend on the
// compiler.
FUSEWIRE_INLINE float reduce_add(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
FUSEWIRE_INLINE float reduce_max(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0];
}

constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction

// Returns 2^(n + f) for |f| <= 1/2, n given as n + kRoundToInteger. The minimax polynomial of
// degree 6 has a relative error of 2e-9, so rounding dominates.
FUSEWIRE_INLINE Vec power_of_two(Vec shifted_n, Vec f) {
  Vec p = f * 1.53458110e-4f + 1.33999309e-3f;
  p = p * f + 9.61848907e-3f;
  p = p * f + 5.55032864e-2f;
  p = p * f + 2.40226462e-1f;
  p = p * f + 6.93147182e-1f;
  p = p * f + 1.0f;
  const IntVec bits =
      reinterpret_cast<const IntVec&>(p) + (reinterpret_cast<const IntVec&>(shifted_n) << 23);
  return reinterpret_cast<const Vec&>(bits);
}

// Returns 2^x for x <= 127; 0 below -126.
FUSEWIRE_INLINE Vec exp2(Vec x) {
  const Vec lowest = broadcast(-126.0f);
  const Vec clamped = max(x, lowest);
  const Vec shifted = clamped + kRoundToInteger;
  const Vec y = power_of_two(shifted, clamped - (shifted - kRoundToInteger));
  return x < lowest ? Vec{} : y;
}

// Returns e^x; 0 below -87, saturating above 88.
FUSEWIRE_INLINE Vec exp(Vec x) {
  const Vec lowest = broadcast(-87.0f);
  const Vec clamped = min(max(x, lowest), broadcast(88.0f));
  const Vec shifted = clamped * 1.44269504f + kRoundToInteger;
  const Vec n = shifted - kRoundToInteger;
  Vec rest = clamped - n * 0.693359375f;  // ln 2 in two parts, exact product with n
  rest = rest - n * -2.12194440e-4f;
  const Vec y = power_of_two(shifted, rest * 1.44269504f);
  return x < lowest ? Vec{} : y;
}

// Returns erf(x) = x P(x^2): Lawson-weighted least squares on |x| <= 4, in the variable
// u = x^2/8 - 1, in which the polynomial is well conditioned; beyond 3.92 erf is 1 in fp32. The
// largest error is 3.4e-7.
FUSEWIRE_INLINE Vec erf(Vec x) {
  const Vec c = min(max(x, broadcast(-4.0f)), broadcast(4.0f));
  const Vec u = c * c * 0.125f - 1.0f;
  // Estrin's scheme: four multiply-adds deep instead of fourteen, a latency that the epilogue of a
  // GEMM has few independent values to hide.
  const Vec u2 = u * u, u4 = u2 * u2, u8 = u4 * u4;
  const Vec p0 =
      (u * -1.76576942e-1f + 3.53531003e-1f) + u2 * (u * -1.07681863e-1f + 1.31673485e-1f);
  const Vec p4 =
      (u * -7.50554875e-2f + 9.02322531e-2f) + u2 * (u * -4.41299900e-2f + 5.97862750e-2f);
  const Vec p8 =
      (u * -2.65917890e-2f + 3.31291072e-2f) + u2 * (u * -3.21002491e-3f + 1.48681570e-2f);
  const Vec p12 = (u * -5.94291883e-3f + 3.52951121e-3f) + u2 * 2.43953592e-3f;
  const Vec p = (p0 + u4 * p4) + u8 * (p8 + u4 * p12);
  const Vec y = c * p;
  return c > 3.92f ? Vec{} + 1.0f : (c < -3.92f ? Vec{} - 1.0f : y);
}

// Returns tanh(x), by the logistic function except near 0, where that loses digits: there
// x + x^3 P(x^2), a least-squares fit with relative error 5e-9. NaN stays NaN.
FUSEWIRE_INLINE Vec tanh(Vec x) {
  const Vec z = x * x;
  Vec p = z * -5.67937e-3f + 2.061819e-2f;
  p = p * z - 5.373402e-2f;
  p = p * z + 1.3331384e-1f;
  p = p * z - 3.3333280e-1f;
  const Vec small = x + x * z * p;
  const Vec large = 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
  return z < 0.39f ? small : (x != x ? x : large);
}

// Returns cap * tanh(x / cap), never beyond the cap.
FUSEWIRE_INLINE Vec capped(Vec x, float cap) {
  return cap * tanh(x / cap);
}

FUSEWIRE_INLINE Vec activated(Vec x, Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return 0.5f * x * (1.0f + erf(x * 0.707106781f));
    case Activation::kGeluTanh: {  // tanh form by the logistic: 0.5 (1 + tanh y) = 1 / (1 + e^-2y)
      const Vec y = x * (0.797884561f + 0.0356774081f * x * x);
      return x / (1.0f + exp(-2.0f * y));
    }
    case Activation::kRelu:
      return x < 0.0f ? Vec{} : x;  // NaN stays NaN
    case Activation::kSilu:
      return x / (1.0f + exp(-x));
    case Activation::kTanh:
      return tanh(x);
    case Activation::kNone:
      break;
  }
  return x;
}

}  // namespace fusewire::FUSEWIRE_TARGET
