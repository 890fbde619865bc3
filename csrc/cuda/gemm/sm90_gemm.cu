// The Hopper matrix product's configurations and their launches.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_large.h"
#include "cuda/gemm/sm90_gemm_small.h"

namespace fusewire::cuda {

namespace {

using sm90::LargeProblem;
using sm90::LargeShape;
using sm90::SmallProblem;
using sm90::SmallShape;

// split: slices of k. One of 0 marks a large configuration.
struct Configuration {
  int channels, tokens, split;
  bool ping_pong = false;
};

constexpr Configuration kLarge[] = {
    {128, 256, 0}, {128, 232, 0},       {128, 184, 0},       {128, 152, 0},
    {128, 120, 0}, {128, 184, 0, true}, {128, 152, 0, true}, {128, 120, 0, true},
};
// Small configurations are all of these tiles with all of these splits.
constexpr Configuration kSmall[] = {{64, 16, 1},  {64, 32, 1},  {64, 64, 1},  {64, 128, 1},
                                    {128, 32, 1}, {128, 64, 1}, {128, 128, 1}};
constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kLargeCount = sizeof(kLarge) / sizeof(kLarge[0]);
constexpr int kSplitCount = sizeof(kSplits) / sizeof(kSplits[0]);
constexpr int kCount = kLargeCount + sizeof(kSmall) / sizeof(kSmall[0]) * kSplitCount;

Configuration configuration_of(int number) {
  if (number < kLargeCount) return kLarge[number];
  Configuration c = kSmall[(number - kLargeCount) / kSplitCount];
  c.split = kSplits[(number - kLargeCount) % kSplitCount];
  return c;
}

int64_t tiles(int64_t size, int64_t tile) {
  return (size + tile - 1) / tile;
}

template <class T, class Shape>
void launch_large(const GemmArguments& a, const Stream& stream) {
  constexpr auto kernel = sm90::large_kernel<T, Shape>;
  allow_shared_memory<kernel>(Shape::kSharedBytes, stream);
  constexpr DType kType = kDTypeOf<T>;
  const CUtensorMap x = sm90::matrix_map(kType, a.x.data, a.m, a.k, a.x.stride, Shape::kShare, 64);
  const CUtensorMap weight =
      sm90::matrix_map(kType, a.weight.data, a.n, a.k, a.weight.stride, 128, 64);
  const auto piece_maps = [&](const void* data, int64_t stride) {
    sm90::PieceMaps maps;
    maps.last = sm90::matrix_map(kType, data, a.m, a.n, stride, Shape::kLastPiece, 64);
    maps.whole = Shape::kLastPiece == Shape::kPiece
                     ? maps.last
                     : sm90::matrix_map(kType, data, a.m, a.n, stride, Shape::kPiece, 64);
    return maps;
  };
  const sm90::PieceMaps out = piece_maps(a.out, a.out_stride);
  const sm90::PieceMaps residual = a.residual == nullptr || a.residual == a.out
                                       ? out
                                       : piece_maps(a.residual, a.residual_stride);
  LargeProblem p;
  p.n = static_cast<int>(a.n);
  p.k_blocks = static_cast<int>(tiles(a.k, 64));
  p.token_tiles = static_cast<int>(tiles(a.m, Shape::kTokens));
  p.channel_tiles = static_cast<int>(tiles(a.n, 128 * Shape::kCluster));
  p.bias = a.bias;
  p.has_residual = a.residual != nullptr;
  p.activation = sm90::formula_of(a.activation);
  const int64_t work = static_cast<int64_t>(p.token_tiles) * p.channel_tiles;
  const int64_t most = multiprocessors() / Shape::kCluster;
  const int clusters = static_cast<int>(work < most ? work : most);
  launch_clusters(kernel, Shape::kCluster, dim3(clusters * Shape::kCluster), dim3(Shape::kThreads),
                  Shape::kSharedBytes, stream, x, weight, out, residual, p);
}

template <class T, class Shape>
void launch_small(const GemmArguments& a, int split, const Stream& stream) {
  constexpr auto kernel = sm90::small_kernel<T, Shape>;
  allow_shared_memory<kernel>(227 * 1024, stream);
  constexpr DType kType = kDTypeOf<T>;
  const CUtensorMap x = sm90::matrix_map(kType, a.x.data, a.m, a.k, a.x.stride, Shape::kTokens, 64);
  const CUtensorMap weight =
      sm90::matrix_map(kType, a.weight.data, a.n, a.k, a.weight.stride, Shape::kChannels, 64);
  SmallProblem p;
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k_blocks = static_cast<int>(tiles(a.k, 64));
  p.slices = split;
  p.stages = Shape::stages(static_cast<int>(tiles(p.k_blocks, split)), split);
  p.bias = a.bias;
  p.residual = a.residual;
  p.residual_stride = a.residual_stride;
  p.out = a.out;
  p.out_stride = a.out_stride;
  p.activation = sm90::formula_of(a.activation);
  const dim3 grid(static_cast<unsigned>(tiles(a.n, Shape::kChannels) * split),
                  static_cast<unsigned>(tiles(a.m, Shape::kTokens)));
  launch_clusters(kernel, split, grid, dim3(Shape::kThreads), Shape::shared_bytes(p.stages, split),
                  stream, x, weight, p);
}

}  // namespace

int sm90_gemm_configurations() {
  return kCount;
}

bool sm90_gemm_fits(const GemmArguments& a, int configuration) {
  const auto aligned = [](const void* pointer, int64_t stride) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
  };
  constexpr int64_t kMost = 1 << 30;
  const bool whole = a.n % 8 == 0;  // else TMA would write between the rows
  if (a.weight.transposed || !aligned(a.out, a.out_stride) || !aligned(a.x.data, a.x.stride) ||
      !aligned(a.weight.data, a.weight.stride) || !aligned(a.bias, 0) ||
      !aligned(a.residual, a.residual == nullptr ? 0 : a.residual_stride) ||
      (a.residual == a.out && a.residual_stride != a.out_stride) || a.k < 8 ||
      (!whole && (a.bias != nullptr || a.residual != nullptr)) || a.m > kMost || a.n > kMost ||
      a.k > kMost) {
    return false;
  }
  const Configuration c = configuration_of(configuration);
  if (c.split == 0) {  // ping-pong's registers have no room for an activation before a residual
    return a.m > 128 && whole &&
           !(c.ping_pong && a.residual != nullptr && a.activation != Activation::kNone);
  }
  // What cannot win is not timed: tiles that are mostly padding, or small and many.
  const int64_t token_tiles = tiles(a.m, c.tokens);
  const int64_t blocks = tiles(a.n, c.channels) * token_tiles * c.split;
  const bool many = c.tokens == 32 && tiles(a.n, c.channels) > multiprocessors();  // a vocabulary
  return c.split <= tiles(a.k, 64) && (c.tokens == 16 || a.m > c.tokens / 2 || many) &&
         (token_tiles <= 8 || c.tokens == 128) && token_tiles <= 65535 &&
         (blocks <= 2 * multiprocessors() || c.split == 1);
}

template <class T>
void sm90_gemm(const GemmArguments& a, int configuration, const Stream& stream) {
  const Configuration c = configuration_of(configuration);
  if (c.split != 0) {
    const auto run = [&](auto shape) { launch_small<T, decltype(shape)>(a, c.split, stream); };
    if (c.channels == 64) {
      if (c.tokens == 16) return run(SmallShape<1, 16>{});
      if (c.tokens == 32) return run(SmallShape<1, 32>{});
      if (c.tokens == 64) return run(SmallShape<1, 64>{});
      return run(SmallShape<1, 128>{});
    }
    if (c.tokens == 32) return run(SmallShape<2, 32>{});
    if (c.tokens == 64) return run(SmallShape<2, 64>{});
    return run(SmallShape<2, 128>{});
  }
  if (c.ping_pong) {
    switch (c.tokens) {
      case 184:
        return launch_large<T, LargeShape<184, true>>(a, stream);
      case 152:
        return launch_large<T, LargeShape<152, true>>(a, stream);
      default:
        return launch_large<T, LargeShape<120, true>>(a, stream);
    }
  }
  switch (c.tokens) {
    case 256:
      return launch_large<T, LargeShape<256, false>>(a, stream);
    case 232:
      return launch_large<T, LargeShape<232, false>>(a, stream);
    case 184:
      return launch_large<T, LargeShape<184, false>>(a, stream);
    case 152:
      return launch_large<T, LargeShape<152, false>>(a, stream);
    default:
      return launch_large<T, LargeShape<120, false>>(a, stream);
  }
}

template void sm90_gemm<__half>(const GemmArguments&, int, const Stream&);
template void sm90_gemm<__nv_bfloat16>(const GemmArguments&, int, const Stream&);

}  // namespace fusewire::cuda
