// Activations and gated units (Shazeer 2020) as separate ops, for where no GEMM epilogue fuses
// them.
#include <type_traits>

#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

// Computes out = activation(x) and, if kGated, multiplies it by the columns from `cols` on. A
// thread has n packs of kWidth elements in flight.
template <class T, int kWidth, int n, bool kGated, Activation kActivation>
__global__ void __launch_bounds__(256)
    activate_elements(T* out, int64_t out_stride, const T* x, int64_t x_stride, int64_t rows,
                      int64_t cols) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  for (int64_t row = tile_row(); row < rows; row += tile_row_step()) {
    const T* from = x + row * x_stride;
    P packs[n], factors[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int64_t c = tile_access<n>(i) * kWidth;
      if (c >= cols) continue;
      packs[i] = *reinterpret_cast<const P*>(from + c);
      if (kGated) factors[i] = *reinterpret_cast<const P*>(from + cols + c);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int64_t c = tile_access<n>(i) * kWidth;
      if (c >= cols) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float y = activated<T>(to_float(packs[i].at[j]), kActivation);
        if (kGated) y *= to_float(factors[i].at[j]);
        packs[i].at[j] = from_float<T>(y);
      }
      *reinterpret_cast<P*>(out + row * out_stride + c) = packs[i];
    }
  }
}

template <class T, bool kGated>
void elements(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
              int64_t cols, Activation activation, const Stream& stream) {
  if (!kGated && (rows == 1 || (x_stride == cols && out_stride == cols))) {  // as one long row
    cols *= rows;
    rows = 1;
    out_stride = x_stride = 0;
  }
  constexpr int n = Vector<T>::kSize;
  const bool vectors =
      cols % n == 0 && vectors_fit<T>(x, x_stride) && vectors_fit<T>(out, out_stride);
  with_activation(activation, [&](auto constant) {
    constexpr Activation kActivation = decltype(constant)::value;
    const auto run = [&](auto width, auto unroll) {
      constexpr int kWidth = decltype(width)::value, kUnroll = decltype(unroll)::value;
      const Tiles tiles = tiles_of<kUnroll>(rows, cols / kWidth);
      launch(activate_elements<T, kWidth, kUnroll, kGated, kActivation>, tiles.grid, tiles.block, 0,
             stream, static_cast<T*>(out), out_stride, static_cast<const T*>(x), x_stride, rows,
             cols);
    };
    constexpr std::integral_constant<int, 1> kOne;
    constexpr std::integral_constant<int, n> kVector;
    constexpr std::integral_constant<int, kGated ? 2 : 4> kSeveral;
    if (!vectors) {
      run(kOne, kOne);
    } else if (rows * cols / n < int64_t{multiprocessors()} * 1024) {  // too few accesses for
                                                                       // several per thread
      run(kVector, kOne);
    } else {
      run(kVector, kSeveral);
    }
  });
}

}  // namespace

template <class T>
void activate(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
              int64_t cols, Activation activation, const Stream& stream) {
  elements<T, false>(out, out_stride, x, x_stride, rows, cols, activation, stream);
}

template <class T>
void gate(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
          int64_t cols, Activation activation, const Stream& stream) {
  elements<T, true>(out, out_stride, x, x_stride, rows, cols, activation, stream);
}

#define INSTANTIATE(T)                                                                          \
  template void activate<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, Activation, \
                            const Stream&);                                                     \
  template void gate<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, Activation,     \
                        const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
