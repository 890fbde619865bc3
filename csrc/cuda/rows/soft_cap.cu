// Limits scores to a bound (Gemma 2, Gemma Team 2024, section 2): cap * tanh(x / cap).
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

constexpr int kUnroll = 2;  // accesses in flight

template <class T, int kWidth>
__global__ void __launch_bounds__(256)
    cap_elements(T* out, int64_t out_stride, const T* x, int64_t x_stride, int64_t rows,
                 int64_t cols, float cap) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  for (int64_t row = tile_row(); row < rows; row += tile_row_step()) {
    P packs[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = tile_access<kUnroll>(i) * kWidth;
      if (c < cols) packs[i] = *reinterpret_cast<const P*>(x + row * x_stride + c);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = tile_access<kUnroll>(i) * kWidth;
      if (c >= cols) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        packs[i].at[j] = from_float<T>(cap * tanhf(to_float(packs[i].at[j]) / cap));
      }
      *reinterpret_cast<P*>(out + row * out_stride + c) = packs[i];
    }
  }
}

}  // namespace

template <class T>
void soft_cap(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
              int64_t cols, float cap, const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<kUnroll>(rows, cols / kWidth);
    launch(cap_elements<T, kWidth>, tiles.grid, tiles.block, 0, stream, static_cast<T*>(out),
           out_stride, static_cast<const T*>(x), x_stride, rows, cols, cap);
  };
  if (cols % n == 0 && vectors_fit<T>(x, x_stride) && vectors_fit<T>(out, out_stride)) {
    run(std::integral_constant<int, n>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

#define INSTANTIATE(T)                                                                     \
  template void soft_cap<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, float, \
                            const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
