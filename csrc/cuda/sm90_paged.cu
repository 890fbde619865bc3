// Hopper's attention over paged keys and values: which shapes it takes, and how its kernel is cut
// for them.
#include "cuda/paged_launch.h"
#include "cuda/sm90_paged.h"

namespace fusewire::cuda {
namespace {

using sm90::PagedNew;
using sm90::PagedTmaTile;
using AnyTile = PagedTmaTile<__half, 64, 1, 2, 3>;  // for what all tiles have in common

template <class Tile>
void launch_tile(const PagedAttentionArguments& a, const PagedShape& shape,
                 const PagedNew<typename Tile::T>& added, const Stream& stream) {
  using T = typename Tile::T;
  const PagedGrid grid = paged_grid<Tile>(a, shape, 0, Tile::kRows);
  if (grid.blocks == 0) return;
  const auto kernel = sm90::paged_tma_kernel<Tile>;
  allow_shared_memory(kernel, Tile::kSharedBytes);
  const auto map = [&](const void* cache) {
    const int64_t rows = a.pages * a.kv_heads * a.batch->page_size();
    return sm90::matrix_map(kDTypeOf<T>, cache, rows, a.head_dim, a.head_dim, Tile::kUnit, 64);
  };
  launch(kernel, dim3(grid.blocks), dim3(Tile::kThreads), Tile::kSharedBytes, stream, shape,
         grid.plan, map(a.keys), map(a.values), static_cast<T*>(a.out),
         static_cast<const T*>(a.qkv), paged_scratch_of(stream), added);
}

template <class T>
void attend(const PagedAttentionArguments& a, const PagedNew<T>& added, const Stream& stream) {
  const PagedShape shape(a, true);
  const auto run = [&](auto few, auto some) {
    if (a.batch->batch().max_seqlen() * shape.group <= 8) {
      launch_tile<decltype(few)>(a, shape, added, stream);
    } else {
      launch_tile<decltype(some)>(a, shape, added, stream);
    }
  };
  if (a.head_dim == 64) return run(PagedTmaTile<T, 64, 1, 2, 3>{}, PagedTmaTile<T, 64, 2, 2, 3>{});
  if (a.head_dim == 128) {
    return run(PagedTmaTile<T, 128, 1, 1, 3>{}, PagedTmaTile<T, 128, 2, 1, 3>{});
  }
  run(PagedTmaTile<T, 256, 1, 1, 1>{}, PagedTmaTile<T, 256, 2, 1, 1>{});
}

// Two angles are read at once, and heads are rotated as a whole.
bool angles_fit(const RotaryArguments& rotary) {
  const auto aligned = [](const float* table) {
    return reinterpret_cast<uintptr_t>(table) % sizeof(float2) == 0;
  };
  return rotary.rotary_dim == rotary.head_dim && aligned(rotary.cos) && aligned(rotary.sin);
}

}  // namespace

bool sm90_paged_fits(const PagedAttentionArguments& a) {
  static const bool hopper = attribute_of_device(cudaDevAttrComputeCapabilityMajor) == 9;
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  return hopper && (a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256) &&
         a.batch->page_size() >= AnyTile::kUnit && aligned(a.keys, 0) && aligned(a.values, 0) &&
         aligned(a.qkv, a.qkv_stride) && aligned(a.out, a.out_stride) &&
         a.pages * a.kv_heads * a.batch->page_size() < INT32_MAX;
}

template <class T>
void sm90_paged_attention(const PagedAttentionArguments& a, const Stream& stream) {
  attend<T>(a, {}, stream);
}

template <class T>
bool sm90_cached_attention(const PagedAttentionArguments& a, void* keys, void* values,
                           const RotaryArguments* rotary, const Stream& stream) {
  const bool whole = a.batch->batch().max_seqlen() * (a.heads / a.kv_heads) <= AnyTile::kRows;
  if (!whole || !sm90_paged_fits(a) || (rotary && !angles_fit(*rotary))) return false;
  PagedNew<T> added = {static_cast<T*>(keys), static_cast<T*>(values)};
  if (rotary) {
    added.positions = rotary->positions;
    added.cos = rotary->cos;
    added.sin = rotary->sin;
    added.angles = rotary->angles;
  }
  attend<T>(a, added, stream);
  return true;
}

#define INSTANTIATE(T)                                                                  \
  template void sm90_paged_attention<T>(const PagedAttentionArguments&, const Stream&); \
  template bool sm90_cached_attention<T>(const PagedAttentionArguments&, void*, void*,  \
                                         const RotaryArguments*, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
