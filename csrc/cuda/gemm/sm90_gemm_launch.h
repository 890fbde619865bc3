// Launches the kernels of the Hopper matrix products. T is the type of the results, Element that of
// x and the weight.
#pragma once

#include <type_traits>

#include "core/gemm.h"
#include "cuda/gemm/quantize_rows.h"
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_large.h"
#include "cuda/gemm/sm90_gemm_small.h"

namespace fusewire::cuda::sm90 {

inline int64_t tiles(int64_t size, int64_t tile) {
  return (size + tile - 1) / tile;
}

// Returns a TMA map of an operand, whose boxes have the columns of a stage.
template <class T, class Element>
CUtensorMap operand_map(const GemmOperand& operand, int64_t rows, int64_t k, int box_rows) {
  constexpr DType kType = std::is_same_v<Element, T> ? kDTypeOf<T> : DType::kUInt8;
  return matrix_map(kType, operand.data, rows, k, operand.stride, box_rows, kStageColumns<Element>);
}

template <class T, class Element>
WeightFeed<Element> weight_feed(const GemmArguments& a, int channels) {
  if constexpr (kInt4<Element>) {
    const int64_t rows = nibbles::tiles_of(a.n);
    const auto map = [&](const void* data, int64_t tile_bytes, int columns) {
      return words_map(data, rows, tile_bytes / 4, channels / nibbles::kTileChannels, columns);
    };
    WeightFeed<Element> feed;
    feed.codes =
        map(a.weight.data, nibbles::units_of(a.k) * nibbles::kUnitBytes, nibbles::kUnitBytes / 4);
    feed.words =
        map(a.weight.scales, nibbles::groups_of(a.k, a.weight.group) * nibbles::kTileChannels * 4,
            WeightFeed<Element>::kTileWordBytes / 4);
    feed.shift = nibbles::group_shift(a.weight.group);
    return feed;
  } else if constexpr (kGated<Element>) {
    return {halves_map(kDTypeOf<T>, a.weight.data, a.n, a.k, a.weight.stride, channels / 16,
                       kStageColumns<Element>)};
  } else {
    return {operand_map<T, Element>(a.weight, a.n, a.k, channels)};
  }
}

template <class T, class Element, class Shape>
void launch_large(const GemmArguments& a, const Stream& stream) {
  constexpr auto kernel = large_kernel<T, Element, Shape>;
  allow_shared_memory<kernel>(Shape::kSharedBytes, stream);
  constexpr DType kType = kDTypeOf<T>;
  const CUtensorMap x = operand_map<T, NumberOf<Element>>(a.x, a.m, a.k, Shape::kShare);
  const auto weight = weight_feed<T, Element>(a, 128);
  const auto piece_map = [&](const void* data, int64_t stride, int tokens) {
    return kGated<Element> ? matrix_map(kType, data, a.m, a.n / 2, stride, tokens, 32,
                                        CU_TENSOR_MAP_SWIZZLE_64B)
                           : matrix_map(kType, data, a.m, a.n, stride, tokens, 64);
  };
  const auto piece_maps = [&](const void* data, int64_t stride) {
    PieceMaps maps;
    maps.last = piece_map(data, stride, Shape::kLastPiece);
    maps.whole =
        Shape::kLastPiece == Shape::kPiece ? maps.last : piece_map(data, stride, Shape::kPiece);
    return maps;
  };
  const PieceMaps out = piece_maps(a.out, a.out_stride);
  const PieceMaps residual = a.residual == nullptr || a.residual == a.out
                                 ? out
                                 : piece_maps(a.residual, a.residual_stride);
  LargeProblem p;
  p.n = static_cast<int>(a.n);
  p.k_blocks = static_cast<int>(tiles(a.k, kStageColumns<Element>));
  p.token_tiles = static_cast<int>(tiles(a.m, Shape::kTokens));
  p.channel_tiles = static_cast<int>(tiles(a.n, 128 * Shape::kCluster));
  p.bias = a.bias;
  p.token_scales = static_cast<const float*>(a.x.scales);
  p.token_scale_stride = block_scale_stride(a.m);
  p.channel_scales = static_cast<const float*>(a.weight.scales);
  p.has_residual = a.residual != nullptr;
  p.activation = formula_of(a.activation);
  const int64_t work = static_cast<int64_t>(p.token_tiles) * p.channel_tiles;
  const int64_t most = multiprocessors() / Shape::kCluster;
  const int clusters = static_cast<int>(work < most ? work : most);
  launch_clusters(kernel, Shape::kCluster, dim3(clusters * Shape::kCluster), dim3(Shape::kThreads),
                  Shape::kSharedBytes, stream, x, weight, out, residual, p);
}

template <class T, class Element, class Shape>
void launch_small(const GemmArguments& a, int split, const Stream& stream) {
  constexpr auto kernel = small_kernel<T, Element, Shape>;
  allow_shared_memory<kernel>(227 * 1024, stream);
  const CUtensorMap x = operand_map<T, NumberOf<Element>>(a.x, a.m, a.k, Shape::kTokens);
  const auto weight = weight_feed<T, Element>(a, Shape::kChannels);
  SmallProblem p;
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k_blocks = static_cast<int>(tiles(a.k, kStageColumns<Element>));
  p.slices = split;
  p.stages = Shape::stages(static_cast<int>(tiles(p.k_blocks, split)), split);
  p.bias = a.bias;
  p.token_scales = static_cast<const float*>(a.x.scales);
  p.token_scale_stride = block_scale_stride(a.m);
  p.channel_scales = static_cast<const float*>(a.weight.scales);
  p.residual = a.residual;
  p.residual_stride = a.residual_stride;
  p.out = a.out;
  p.out_stride = a.out_stride;
  p.activation = formula_of(a.activation);
  const dim3 grid(static_cast<unsigned>(tiles(a.n, Shape::kChannels) * split),
                  static_cast<unsigned>(tiles(a.m, Shape::kTokens)));
  launch_clusters(kernel, split, grid, dim3(Shape::kThreads), Shape::shared_bytes(p.stages, split),
                  stream, x, weight, p);
}

template <class Element, int kGroups, int kTokens>
using SmallOf = SmallShape<kGroups, kTokens, 128, kInBlocks<Element>>;

template <class T, class Element>
void launch_small_tile(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  const auto run = [&](auto shape) {
    launch_small<T, Element, decltype(shape)>(a, c.split, stream);
  };
  if (c.channels == 64) {
    if (c.tokens == 16) return run(SmallOf<Element, 1, 16>{});
    if (c.tokens == 32) return run(SmallOf<Element, 1, 32>{});
    if (c.tokens == 64) return run(SmallOf<Element, 1, 64>{});
    return run(SmallOf<Element, 1, 128>{});
  }
  if (c.tokens == 32) return run(SmallOf<Element, 2, 32>{});
  if (c.tokens == 64) return run(SmallOf<Element, 2, 64>{});
  return run(SmallOf<Element, 2, 128>{});
}

template <class Element, int kTokens, bool kPingPong>
using LargeOf = LargeShape<kTokens, kPingPong, 128, false, kGated<Element> ? 32 : 64>;

// Launches a configuration of 16-bit operands.
template <class T, class Element>
void launch_tile(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  if (c.split != 0) return launch_small_tile<T, Element>(a, c, stream);
  const auto run = [&](auto shape) { launch_large<T, Element, decltype(shape)>(a, stream); };
  if (c.ping_pong) {
    if (c.tokens == 184) return run(LargeOf<Element, 184, true>{});
    if (c.tokens == 152) return run(LargeOf<Element, 152, true>{});
    return run(LargeOf<Element, 120, true>{});
  }
  if (c.tokens == 256) return run(LargeOf<Element, 256, false>{});
  if (c.tokens == 232) return run(LargeOf<Element, 232, false>{});
  if (c.tokens == 184) return run(LargeOf<Element, 184, false>{});
  if (c.tokens == 152) return run(LargeOf<Element, 152, false>{});
  return run(LargeOf<Element, 120, false>{});
}

}  // namespace fusewire::cuda::sm90
