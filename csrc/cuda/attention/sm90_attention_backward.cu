// Launches the backward pass of attention on Hopper: the shapes that it supports and the
// configuration of its kernels for each.
#include "cuda/attention/attention_dots.h"
#include "cuda/attention/sm90_backward.h"

namespace fusewire::cuda {
namespace {

using sm90::BackwardMaps;
using sm90::RowsTile;

template <class QueriesTile, class KeysTile>
void launch_both(const AttentionBackwardArguments& g, const Stream& stream) {
  using T = typename QueriesTile::T;
  const AttentionArguments& a = g.forward;
  const int64_t tokens = a.queries->tokens();
  const auto map = [&](const HeadRows& rows, const SequenceBatch& batch, int64_t heads) {
    return sm90::rows_map(kDTypeOf<T>, rows, batch.tokens(), heads, a.head_dim);
  };
  const BackwardMaps maps{map(a.q, *a.queries, a.heads), map(a.k, *a.keys, a.kv_heads),
                          map(a.v, *a.keys, a.kv_heads), map(g.dout, *a.queries, a.heads)};
  float* const dots = attention_dots(a.heads * tokens, stream);
  const AttentionBackwardShape<T> shape(g);
  const auto launch_one = [&](auto owns_keys, auto tile, const SequenceBatch& owned,
                              int64_t heads) {
    using Tile = decltype(tile);
    constexpr auto kKernel = sm90::backward_kernel<Tile, decltype(owns_keys)::value>;
    constexpr size_t kBytes = sizeof(sm90::BackwardMemory<Tile>);
    allow_shared_memory<kKernel>(kBytes, stream);
    launch(kKernel, dim3(static_cast<unsigned>(owned.query_tiles(Tile::kOwn) * heads)),
           dim3(Tile::kThreads), kBytes, stream, maps, shape, dots, tokens);
  };
  launch_one(std::false_type(), QueriesTile(), *a.queries, a.heads);
  launch_one(std::true_type(), KeysTile(), *a.keys, a.kv_heads);
}

}  // namespace

bool sm90_attention_backward_fits(const AttentionBackwardArguments& g) {
  using sm90::rows_fit;
  return sm90::shape_fits(g.forward) && rows_fit(g.dout) && rows_fit({g.dq, g.dq_stride}) &&
         rows_fit({g.dk, g.dk_stride}) && rows_fit({g.dv, g.dv_stride});
}

template <class T>
void sm90_attention_backward(const AttentionBackwardArguments& g, const Stream& stream) {
  // Measured on an H100: the kernel of the queries needs fewer registers, and four blocks per
  // multiprocessor hide more latency than more stages do.
  if (g.forward.head_dim == 64) {
    launch_both<RowsTile<T, 64, 2, 4>, RowsTile<T, 64, 3, 3>>(g, stream);
  } else {
    launch_both<RowsTile<T, 128, 2, 2>, RowsTile<T, 128, 2, 2>>(g, stream);
  }
}

template void sm90_attention_backward<__half>(const AttentionBackwardArguments&, const Stream&);
template void sm90_attention_backward<__nv_bfloat16>(const AttentionBackwardArguments&,
                                                     const Stream&);

}  // namespace fusewire::cuda
