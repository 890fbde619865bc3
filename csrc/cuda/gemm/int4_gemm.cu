#include <algorithm>

#include "cuda/gemm/int4_gemm.h"
#include "cuda/gemm/int4_kernel.h"

namespace fusewire::cuda {
namespace {

using nibbles::Problem;
using nibbles::Shape;

int over(int a, int b) {
  return (a + b - 1) / b;
}

// Returns the number of slices of k, which the blocks of a cluster share (split k): as many as
// leave a multiprocessor for each block, and a unit for each team.
template <class Shape>
int slices_of(const Problem& p) {
  constexpr int kMost = 4;
  const int blocks = over(p.n, Shape::kChannels) * over(p.m, Shape::kTokens);
  int slices = 1;
  while (has_clusters() && 2 * slices <= kMost && 2 * slices * blocks <= multiprocessors() &&
         2 * slices * Shape::kDeep <= p.units) {
    slices *= 2;
  }
  return slices;
}

template <class T, class Shape, bool kFine>
void launch_shape(Problem p, const Stream& stream) {
  constexpr auto kernel = nibbles::product_kernel<T, Shape, kFine>;
  using Memory = nibbles::Ring<Shape, kFine>;
  allow_shared_memory<kernel>(Memory::bytes(Shape::kTokens), stream);
  p.slices = slices_of<Shape>(p);
  p.rows = Shape::kTokens == 8 ? std::min(p.m, 8) : Shape::kTokens;
  const dim3 grid(static_cast<unsigned>(over(p.n, Shape::kChannels) * p.slices),
                  static_cast<unsigned>(over(p.m, Shape::kTokens)));
  launch_clusters(kernel, p.slices, grid, dim3(Shape::kThreads), Memory::bytes(p.rows), stream, p);
}

// If there are few blocks, each has a multiprocessor to itself and is large; if there are many,
// blocks are small, so that some run while others begin and end. Shapes were timed on an H100 with
// the products of Llama-3-8B.
template <class T, bool kFine>
void launch_product(const Problem& p, const Stream& stream) {
  const auto go = [&](auto shape) { launch_shape<T, decltype(shape), kFine>(p, stream); };
  const auto fit = [&](int channels, int each) {  // whether there are at most `each` blocks per
                                                  // multiprocessor
    return over(p.n, channels) * over(p.m, 64) <= each * multiprocessors();
  };
  if (p.m <= 8) {
    if (fit(32, 1)) return go(Shape<8, 2, 1, 16, 4, 1>{});
    if (fit(32, 3)) return go(Shape<8, 2, 1, 8, 6, 3>{});
    return go(Shape<8, 2, 1, 4, 8, 5>{});
  }
  if (p.m <= 16) return go(Shape<16, 2, 1, 8, 4, 2>{});
  if (p.m <= 32) {
    if (fit(32, 1)) return go(Shape<32, 2, 1, 8, 4, 1>{});
    if (fit(64, 1)) return go(Shape<32, 2, 2, 4, 4, 1>{});
    return go(Shape<32, 2, 4, 2, 4, 1>{});
  }
  if (fit(64, 1)) return go(Shape<64, 2, 2, 4, 4, 1>{});
  return go(Shape<64, 2, 2, 2, 4, 2>{});
}

}  // namespace

template <class T>
bool int4_gemm_fits(const GemmArguments& a) {
  return a.m <= kMostInt4Rows && vectors_fit<T>(a.x.data, a.m == 1 ? 0 : a.x.stride);
}

template <class T>
void int4_gemm(const GemmArguments& a, const Stream& stream) {
  Problem p;
  p.codes = static_cast<const uint8_t*>(a.weight.data);
  p.words = static_cast<const uint32_t*>(a.weight.scales);
  p.x = a.x.data;
  p.x_stride = a.x.stride;
  p.bias = a.bias;
  p.residual = a.residual;
  p.residual_stride = a.residual_stride;
  p.out = a.out;
  p.out_stride = a.out_stride;
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k = static_cast<int>(a.k);
  p.tiles = static_cast<int>(nibbles::tiles_of(a.n));
  p.units = static_cast<int>(nibbles::units_of(a.k));
  p.groups = static_cast<int>(nibbles::groups_of(a.k, a.weight.group));
  p.shift = nibbles::group_shift(a.weight.group);
  p.activation = a.activation;
  a.weight.group == nibbles::kFineGroup ? launch_product<T, true>(p, stream)
                                        : launch_product<T, false>(p, stream);
}

#define INSTANTIATE(T)                                   \
  template bool int4_gemm_fits<T>(const GemmArguments&); \
  template void int4_gemm<T>(const GemmArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
