// Gradients of activations and gated units, computed from the activation's input.
#include <type_traits>

#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

struct Logistic {
  float value, slope;
};

// Returns 1 / (1 + e^-x) and its derivative. Computing the derivative from 1 - value would lose
// digits.
template <class T>
__device__ __forceinline__ Logistic logistic(float x) {
  const float e = exp_for<T>(-fabsf(x)), r = 1.0f / (1.0f + e);
  return {x < 0.0f ? e * r : r, e * r * r};
}

template <class T>
__device__ __forceinline__ float derivative(float any, Activation activation) {
  // Beyond these bounds every derivative is 0 or 1 in fp32; squares stay finite. NaN stays NaN.
  const float x = any > 32.0f ? 32.0f : any < -32.0f ? -32.0f : any;
  switch (activation) {
    case Activation::kGeluErf: {  // Phi(x) + x phi(x)
      const float tail = normal_tail<T>(fabsf(x)), density = exp_for<T>(x * x * -0.5f);
      return fmaf(x * 0.398942280f, density, x < 0.0f ? tail : 1.0f - tail);
    }
    case Activation::kGeluTanh: {  // derivative of x / (1 + e^-y)
      const Logistic s = logistic<T>(x * (1.595769122f + 0.0713548163f * x * x));
      return s.value + x * s.slope * (1.595769122f + 0.2140644488f * x * x);
    }
    case Activation::kSilu: {
      const Logistic s = logistic<T>(x);
      return s.value + x * s.slope;
    }
    case Activation::kTanh:
      return 4.0f * logistic<T>(2.0f * x).slope;
    case Activation::kRelu:
      return x <= 0.0f ? 0.0f : 1.0f;
    case Activation::kNone:
      break;
  }
  return 1.0f;
}

struct BackwardArguments {
  void* dx;
  const void *dy, *x;
  int64_t dx_stride, dy_stride, x_stride, rows, cols;
};

// Computes dx = dy * activation'(x). If kGated, it is multiplied by the columns of x from `cols`
// on, whose gradient is dy * activation(x). A thread has n packs of kWidth elements in flight; each
// is read before it is written, so dx may be dy or x.
template <class T, int kWidth, int n, bool kGated, Activation kActivation>
__global__ void __launch_bounds__(256) activation_gradients(BackwardArguments a) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  for (int64_t row = tile_row(); row < a.rows; row += tile_row_step()) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    T* dx = static_cast<T*>(a.dx) + row * a.dx_stride;
    P inputs[n], factors[n], gradients[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int64_t c = tile_access<n>(i) * kWidth;
      if (c >= a.cols) continue;
      inputs[i] = *reinterpret_cast<const P*>(x + c);
      gradients[i] = *reinterpret_cast<const P*>(dy + c);
      if (kGated) factors[i] = *reinterpret_cast<const P*>(x + a.cols + c);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int64_t c = tile_access<n>(i) * kWidth;
      if (c >= a.cols) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float value = to_float(inputs[i].at[j]), g = to_float(gradients[i].at[j]);
        float slope = g * derivative<T>(value, kActivation);
        if (kGated) {
          slope *= to_float(factors[i].at[j]);
          factors[i].at[j] = from_float<T>(g * activated<T>(value, kActivation));
        }
        inputs[i].at[j] = from_float<T>(slope);
      }
      *reinterpret_cast<P*>(dx + c) = inputs[i];
      if (kGated) *reinterpret_cast<P*>(dx + a.cols + c) = factors[i];
    }
  }
}

template <class T, bool kGated>
void backward(BackwardArguments a, Activation activation, const Stream& stream) {
  if (!kGated &&
      (a.rows == 1 || (a.x_stride == a.cols && a.dy_stride == a.cols && a.dx_stride == a.cols))) {
    a.cols *= a.rows;  // as one long row
    a.rows = 1;
    a.dx_stride = a.dy_stride = a.x_stride = 0;
  }
  constexpr int kVector = Vector<T>::kSize;
  const bool vectors = a.cols % kVector == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.dy, a.dy_stride) && vectors_fit<T>(a.dx, a.dx_stride);
  with_activation(activation, [&](auto constant) {
    constexpr Activation kActivation = decltype(constant)::value;
    const auto run = [&](auto width, auto unroll) {
      constexpr int kWidth = decltype(width)::value, n = decltype(unroll)::value;
      const Tiles tiles = tiles_of<n>(a.rows, a.cols / kWidth);
      launch(activation_gradients<T, kWidth, n, kGated, kActivation>, tiles.grid, tiles.block, 0,
             stream, a);
    };
    if (vectors) {
      run(std::integral_constant<int, kVector>{}, std::integral_constant<int, kGated ? 1 : 2>{});
    } else {
      run(std::integral_constant<int, 1>{}, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

template <class T>
void activate_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride,
                       const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                       Activation activation, const Stream& stream) {
  backward<T, false>({dx, dy, x, dx_stride, dy_stride, x_stride, rows, cols}, activation, stream);
}

template <class T>
void gate_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride, const void* x,
                   int64_t x_stride, int64_t rows, int64_t cols, Activation activation,
                   const Stream& stream) {
  backward<T, true>({dx, dy, x, dx_stride, dy_stride, x_stride, rows, cols}, activation, stream);
}

#define INSTANTIATE(T)                                                                           \
  template void activate_backward<T>(void*, int64_t, const void*, int64_t, const void*, int64_t, \
                                     int64_t, int64_t, Activation, const Stream&);               \
  template void gate_backward<T>(void*, int64_t, const void*, int64_t, const void*, int64_t,     \
                                 int64_t, int64_t, Activation, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
