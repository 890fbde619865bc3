#include <utility>

#include "cuda/gemm/int8_gemm.h"
#include "cuda/gemm/int8_kernel.h"

namespace fusewire::cuda {
namespace {

using int8::Problem;
using int8::Shape;

template <class T, class Shape>
void launch_shape(const Problem& p, Activation activation, const Stream& stream) {
  const auto over = [](int size, int tile) {
    return static_cast<unsigned>((size + tile - 1) / tile);
  };
  dim3 grid(over(p.m, Shape::kTokens), over(p.n, Shape::kChannels));
  if (p.channels_first) std::swap(grid.x, grid.y);
  with_activation(activation, [&](auto constant) {
    constexpr auto kernel = int8::product_kernel<T, Shape, decltype(constant)::value>;
    allow_shared_memory<kernel>(Shape::kSharedBytes, stream);
    launch(kernel, grid, dim3(Shape::kThreads), Shape::kSharedBytes, stream, p);
  });
}

}  // namespace

// The shapes were timed on an H200. With few tokens, reading the weight takes the time, which needs
// many blocks with many loads in flight. Two blocks of 128 x 128 fit on a multiprocessor with 100
// KB of shared memory, such as Ada's.
template <class T>
void int8_gemm(const GemmArguments& a, const Stream& stream) {
  Problem p;
  p.x = static_cast<const int8_t*>(a.x.data);
  p.weight = static_cast<const int8_t*>(a.weight.data);
  p.x_stride = a.x.stride;
  p.weight_stride = a.weight.stride;
  p.token_scales = static_cast<const float*>(a.x.scales);
  p.channel_scales = static_cast<const float*>(a.weight.scales);
  p.bias = a.bias;
  p.residual = a.residual;
  p.residual_stride = a.residual_stride;
  p.out = a.out;
  p.out_stride = a.out_stride;
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k = static_cast<int>(a.k);
  p.vectors = a.n % 8 == 0 && vectors_fit<T>(a.out, a.out_stride) && vectors_fit<T>(a.bias, 0) &&
              (!a.residual || vectors_fit<T>(a.residual, a.residual_stride));
  p.channels_first = a.n < a.m;
  const int64_t large = (a.m + 127) / 128 * ((a.n + 127) / 128);
  if (a.m <= 16) return launch_shape<T, Shape<16, 64, 16, 32, 8>>(p, a.activation, stream);
  if (large < multiprocessors()) {
    return launch_shape<T, Shape<64, 64, 32, 32, 4>>(p, a.activation, stream);
  }
  launch_shape<T, Shape<128, 128, 64, 64, 3>>(p, a.activation, stream);
}

#define INSTANTIATE(T) template void int8_gemm<T>(const GemmArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
