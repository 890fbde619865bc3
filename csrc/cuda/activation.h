// Activation functions of one fp32 value. Template parameter T is the element type that the result
// is rounded to, and decides how accurately it is computed.
#pragma once

#include <type_traits>

#include "core/activation.h"
#include "cuda/element.h"

namespace fusewire::cuda {

// Returns 2^x with an error of at most 2 ulp, in one instruction; results that would be denormal
// are flushed to 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.44269504f;

// Returns e^x. For 16-bit elements the rounding error of the product, 2^-24 of the exponent, is far
// below that of an element.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  return sizeof(T) == 4 ? expf(x) : fast_exp2(x * kLog2E);
}

// Returns x / (1 + e^-y).
template <class T>
__device__ __forceinline__ float logistic_times(float x, float y) {
  const float divisor = 1.0f + exp_for<T>(-y);
  if (sizeof(T) == 4) return x / divisor;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  return x * inverse;
}

// Returns max(x, 0), or NaN if x is NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Returns Phi(-a) for a >= 0, where Phi is the normal distribution function.
//
// GELU is x Phi(x) = max(x, 0) - a Phi(-a) with a = |x|. This subtracts no nearly equal values, so
// negative results keep their relative precision. log2 Phi(-a) is close to a parabola. The
// polynomials are Lawson-weighted least-squares fits of it, weighted by what an ulp of the result
// allows. Beyond the ranges of the fits (up to 6.5 and 6) they fall off faster than any result can
// show.
//   16 bits, degree 7: largest error 0.005 ulp of fp16.
//   fp32, degree 10: largest error 3.3e-8, where 0.5 x (1 + erf(x / sqrt 2)) has 8.3e-8.
template <class T>
__device__ __forceinline__ float normal_tail(float a) {
  constexpr float kHalves[] = {-0.999996781f,  -1.15120244f,    -4.58657384e-1f, -5.36761805e-2f,
                               8.31210986e-3f, -8.62262095e-4f, 4.99491507e-5f,  -1.06223592e-6f};
  constexpr float kFloats[] = {-1.0f,           -1.15110445f,   -4.59221184e-1f, -5.24313450e-2f,
                               6.91525079e-3f,  4.36619921e-5f, -3.11502255e-4f, 8.95782359e-5f,
                               -1.40310167e-5f, 1.23620430e-6f, -4.78572026e-8f};
  constexpr int kDegree = sizeof(T) == 4 ? 10 : 7;
  float p = sizeof(T) == 4 ? kFloats[10] : kHalves[7];
#pragma unroll
  for (int i = kDegree - 1; i >= 0; --i) p = fmaf(p, a, sizeof(T) == 4 ? kFloats[i] : kHalves[i]);
  return fast_exp2(p);
}

template <class T>
__device__ __forceinline__ float gelu(float x) {
  const float a = fminf(fabsf(x), 64.0f);  // infinity times normal_tail, 0, would be NaN
  return fmaf(-a, normal_tail<T>(a), relu(x));
}

template <class T>
__device__ __forceinline__ float activated(float x, Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return gelu<T>(x);
    case Activation::kGeluTanh:  // 0.5 (1 + tanh y) is the logistic function of 2 y
      return logistic_times<T>(x, x * (1.59576912f + 0.0713548163f * x * x));
    case Activation::kRelu:
      return relu(x);
    case Activation::kSilu:
      return logistic_times<T>(x, x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kNone:
      break;
  }
  return x;
}

// Calls body(std::integral_constant of the activation), so that a kernel is compiled for each one.
template <class Body>
void with_activation(Activation activation, Body&& body) {
  const auto give = [&](auto constant) { body(constant); };
  switch (activation) {
    case Activation::kNone:
      return give(std::integral_constant<Activation, Activation::kNone>{});
    case Activation::kGeluErf:
      return give(std::integral_constant<Activation, Activation::kGeluErf>{});
    case Activation::kGeluTanh:
      return give(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kRelu:
      return give(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kSilu:
      return give(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kTanh:
      return give(std::integral_constant<Activation, Activation::kTanh>{});
  }
}

}  // namespace fusewire::cuda
