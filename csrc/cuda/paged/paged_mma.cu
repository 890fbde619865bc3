// Chooses the tile sizes of paged attention on tensor cores by head_dim, padded with zeros to the
// next compiled one.
#include "cuda/paged/paged_kernel.h"
#include "cuda/paged/paged_mma_float8.h"

namespace fusewire::cuda {
namespace {

// Template parameters: head_dim, teams, stages, blocks per multiprocessor.
template <class T, int kDim, int kTeams, int kStages, int kBlocks>
using Few = PagedMmaTile<T, kDim, 1, kTeams, 32, kStages, kBlocks>;
// Template parameters: head_dim, keys per step, blocks per multiprocessor.
template <class T, int kDim, int kKeys, int kBlocks>
using Many = PagedMmaTile<T, kDim, 4, 1, kKeys, 2, kBlocks>;
template <class T, int kDim, int kTeams, int kStages, int kBlocks>
using FewFloat8 = PagedMmaFloat8Tile<T, kDim, 1, kTeams, 32, kStages, kBlocks>;
template <class T, int kDim, int kKeys, int kBlocks>
using ManyFloat8 = PagedMmaFloat8Tile<T, kDim, 4, 1, kKeys, 2, kBlocks>;

template <class T>
void attend_float8(const AttentionArguments& a, const Stream& stream) {
  const PagedShape shape(a, paged_vectors_fit<T, Float8>(a));
  const auto run = [&](auto few, auto many) {
    launch_paged_tiles<decltype(few), decltype(many)>(a, shape, stream);
  };
  if (a.head_dim <= 32) return run(FewFloat8<T, 32, 4, 2, 4>{}, ManyFloat8<T, 32, 64, 4>{});
  if (a.head_dim <= 64) return run(FewFloat8<T, 64, 4, 2, 3>{}, ManyFloat8<T, 64, 64, 3>{});
  if (a.head_dim <= 96) return run(FewFloat8<T, 96, 2, 2, 4>{}, ManyFloat8<T, 96, 64, 2>{});
  if (a.head_dim <= 128) return run(FewFloat8<T, 128, 2, 2, 3>{}, ManyFloat8<T, 128, 64, 2>{});
  run(FewFloat8<T, 256, 3, 1, 2>{}, ManyFloat8<T, 256, 32, 2>{});
}

}  // namespace

template <class T>
void paged_mma_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.cache_format.float8) return attend_float8<T>(a, stream);
  const PagedShape shape(a, paged_vectors_fit<T, T>(a));
  const auto run = [&](auto few, auto many) {
    launch_paged_tiles<decltype(few), decltype(many)>(a, shape, stream);
  };
  if (a.head_dim <= 32) return run(Few<T, 32, 4, 2, 4>{}, Many<T, 32, 64, 4>{});
  if (a.head_dim <= 64) return run(Few<T, 64, 4, 2, 3>{}, Many<T, 64, 64, 3>{});
  if (a.head_dim <= 80) return run(Few<T, 80, 2, 2, 4>{}, Many<T, 80, 64, 2>{});
  if (a.head_dim <= 96) return run(Few<T, 96, 2, 2, 4>{}, Many<T, 96, 64, 2>{});
  if (a.head_dim <= 128) return run(Few<T, 128, 2, 2, 3>{}, Many<T, 128, 64, 2>{});
  run(Few<T, 256, 3, 1, 2>{}, Many<T, 256, 32, 2>{});
}

template void paged_mma_attention<__half>(const AttentionArguments&, const Stream&);
template void paged_mma_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
