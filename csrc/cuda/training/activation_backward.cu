// Gradients of activations and gated units, computed from the activation's input.
#include <type_traits>

#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"
#include "cuda/training/column_strips.h"

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

template <class T, int kWidth>
__device__ __forceinline__ const Pack<T, kWidth>& pack_at(const void* matrix, int64_t offset) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(matrix) + offset);
}

// Computes dx = dy * activation'(x), and the sums of its columns. A thread reads what it overwrites
// before that, so dx may be dy or x.
template <class T, int kWidth, Activation kActivation>
__global__ void __launch_bounds__(kStripBlock, kStripBlocksPerSm)
    activation_gradients(ColumnStrips strips, BackwardArguments a) {
  using P = Pack<T, kWidth>;
  struct Inputs {
    P x, dy;
  };
  let_next_start();
  wait_for_inputs();
  sum_strip<kWidth, 2>(
      strips,
      [&](int r, int c) {
        return Inputs{pack_at<T, kWidth>(a.x, r * a.x_stride + c),
                      pack_at<T, kWidth>(a.dy, r * a.dy_stride + c)};
      },
      [&](const Inputs& in, int r, int c, float (&v)[kWidth]) {
        P out;
        float x[kWidth];
        widen(in.x, x);
        widen(in.dy, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          out.at[j] = from_float<T>(v[j] * derivative<T>(x[j], kActivation));
        }
        widen(out, v);
        *reinterpret_cast<P*>(static_cast<T*>(a.dx) + r * a.dx_stride + c) = out;
      });
}

// The same of activation(x) * y, with y in the columns of x from `cols` on: the gradient of y is
// dy * activation(x).
template <class T, int kWidth, Activation kActivation>
__global__ void __launch_bounds__(256) gate_gradients(BackwardArguments a) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  const int64_t c = tile_access<1>(0) * kWidth;
  if (c >= a.cols) return;
  for (int64_t row = tile_row(); row < a.rows; row += tile_row_step()) {
    P inputs = pack_at<T, kWidth>(a.x, row * a.x_stride + c);
    P factors = pack_at<T, kWidth>(a.x, row * a.x_stride + a.cols + c);
    const P gradients = pack_at<T, kWidth>(a.dy, row * a.dy_stride + c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float value = to_float(inputs.at[j]), g = to_float(gradients.at[j]);
      const float slope = g * derivative<T>(value, kActivation) * to_float(factors.at[j]);
      factors.at[j] = from_float<T>(g * activated<T>(value, kActivation));
      inputs.at[j] = from_float<T>(slope);
    }
    T* dx = static_cast<T*>(a.dx) + row * a.dx_stride + c;
    *reinterpret_cast<P*>(dx) = inputs;
    *reinterpret_cast<P*>(dx + a.cols) = factors;
  }
}

// Calls body(activation, kWidth) with what the kernel is compiled for.
template <class T, class Body>
void with_kernel(const BackwardArguments& a, Activation activation, Body&& body) {
  constexpr int kVector = Vector<T>::kSize;
  const bool vectors = a.cols % kVector == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.dy, a.dy_stride) && vectors_fit<T>(a.dx, a.dx_stride);
  with_activation(activation, [&](auto constant) {
    if (vectors) {
      body(constant, std::integral_constant<int, kVector>{});
    } else {
      body(constant, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

template <class T>
void activate_backward(void* dx, int64_t dx_stride, float* sums, const void* dy, int64_t dy_stride,
                       const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                       Activation activation, bool accumulate, const Stream& stream) {
  const BackwardArguments a = {dx, dy, x, dx_stride, dy_stride, x_stride, rows, cols};
  with_kernel<T>(a, activation, [&](auto constant, auto width) {
    constexpr int kWidth = decltype(width)::value;
    launch_strips<kWidth>(activation_gradients<T, kWidth, decltype(constant)::value>, sums, rows,
                          cols, accumulate, stream, a);
  });
}

template <class T>
void gate_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride, const void* x,
                   int64_t x_stride, int64_t rows, int64_t cols, Activation activation,
                   const Stream& stream) {
  const BackwardArguments a = {dx, dy, x, dx_stride, dy_stride, x_stride, rows, cols};
  with_kernel<T>(a, activation, [&](auto constant, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<1>(rows, cols / kWidth);
    launch(gate_gradients<T, kWidth, decltype(constant)::value>, tiles.grid, tiles.block, 0, stream,
           a);
  });
}

#define INSTANTIATE(T)                                                                            \
  template void activate_backward<T>(void*, int64_t, float*, const void*, int64_t, const void*,   \
                                     int64_t, int64_t, int64_t, Activation, bool, const Stream&); \
  template void gate_backward<T>(void*, int64_t, const void*, int64_t, const void*, int64_t,      \
                                 int64_t, int64_t, Activation, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
