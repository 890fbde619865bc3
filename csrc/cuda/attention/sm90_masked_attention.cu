// Launches attention with masks, dropout and log_sum_exp on Hopper: the shapes that it supports and
// the configuration of its kernel for each.
#include "cuda/attention/flash_memory.h"
#include "cuda/attention/sm90_masked_attention.h"

namespace fusewire::cuda {
namespace {

using sm90::RowsTile;

template <class Tile>
void launch_masked(const AttentionArguments& a, const Stream& stream) {
  using T = typename Tile::T;
  const auto map = [&](const HeadRows& rows, const SequenceBatch& batch, int64_t heads) {
    return sm90::rows_map(kDTypeOf<T>, rows, batch.tokens(), heads, a.head_dim);
  };
  const sm90::MaskedMaps maps{map(a.q, *a.queries, a.heads), map(a.k, *a.keys, a.kv_heads),
                              map(a.v, *a.keys, a.kv_heads)};
  const auto run = [&](auto drops) {
    constexpr auto kKernel = sm90::masked_attention_kernel<Tile, decltype(drops)::value>;
    constexpr size_t kBytes = sizeof(sm90::MaskedMemory<Tile>);
    allow_shared_memory<kKernel>(kBytes, stream);
    const int64_t tiles = a.queries->query_tiles(Tile::kOwn) * a.heads;
    launch(kKernel, dim3(static_cast<unsigned>(tiles)), dim3(Tile::kThreads), kBytes, stream, maps,
           AttentionShape(a), static_cast<T*>(a.out));
  };
  a.dropout.probability > 0 ? run(std::true_type()) : run(std::false_type());
}

}  // namespace

bool sm90_masked_attention_fits(const AttentionArguments& a) {
  return !plain_attention(a) && sm90::shape_fits(a) && a.scale * kLog2E > kLeastFactor;
}

template <class T>
void sm90_masked_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim == 64) {
    launch_masked<RowsTile<T, 64, 2, 4>>(a, stream);
  } else {
    launch_masked<RowsTile<T, 128, 2, 2>>(a, stream);
  }
}

template void sm90_masked_attention<__half>(const AttentionArguments&, const Stream&);
template void sm90_masked_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
