// Activations of one fp32 value, as accurate as an element of T can show.
#pragma once

#include <type_traits>

#include "core/activation.h"
#include "cuda/element.h"

namespace fusewire::cuda {

// 2^x to 2 ulp in one instruction; 0 where the result would be denormal.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.44269504f;

// e^x: for 16-bit elements the product's rounding error, 2^-24 of the exponent, is far below
// theirs.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  return sizeof(T) == 4 ? expf(x) : fast_exp2(x * kLog2E);
}

// x / (1 + e^-y)
template <class T>
__device__ __forceinline__ float logistic_times(float x, float y) {
  const float divisor = 1.0f + exp_for<T>(-y);
  if (sizeof(T) == 4) return x / divisor;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  return x * inverse;
}

// max(x, 0) that lets NaN pass.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Phi(-a) for a >= 0, Phi the normal distribution function.
//
// x Phi(x) = max(x, 0) - a Phi(-a) with a = |x|: no difference of near numbers, so negative results
// keep their relative precision. log2 Phi(-a) is close to a parabola; the polynomials are its
// Lawson-weighted least squares fits, weighted by what an ulp of the result allows. Further out
// than they were fitted (6.5 and 6) they fall faster than any result can show.
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
  const float a = fminf(fabsf(x), 64.0f);  // an infinity would meet its own zero
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

// Calls body(constant of the activation), so that a kernel is compiled for each.
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
