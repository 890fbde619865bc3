// Launches paged attention on Hopper: the shapes that it supports and the configuration of its
// kernel for each.
#include "cuda/paged/paged_launch.h"
#include "cuda/paged/sm90_paged.h"

namespace fusewire::cuda {
namespace {

using sm90::PagedNew;
using sm90::PagedTmaTile;
using AnyTile = PagedTmaTile<__half, __half, 64, 1, 2, 3>;  // for constants common to all tiles

template <class Tile>
void launch_tile(const AttentionArguments& a, const PagedShape& shape,
                 const PagedNew<typename Tile::Stored>& added, const Stream& stream) {
  using T = typename Tile::T;
  const PagedGrid grid = paged_grid<Tile>(a, shape, 0, Tile::kRows);
  if (grid.blocks == 0) return;
  constexpr auto kernel = sm90::paged_tma_kernel<Tile>;
  allow_shared_memory<kernel>(Tile::kSharedBytes, stream);
  const auto map = [&](const void* cache) {
    const int64_t keys = a.cache_pages * a.kv_heads * a.pages->page_size();
    const int64_t width = Tile::kDim * Tile::kLineKeys;  // a line may hold several keys
    return sm90::matrix_map(Tile::kFloat8 ? DType::kUInt8 : kDTypeOf<T>, cache,
                            keys / Tile::kLineKeys, width, width, Tile::kUnit / Tile::kLineKeys,
                            128 / int{sizeof(typename Tile::Stored)});
  };
  launch(kernel, dim3(grid.blocks), dim3(Tile::kThreads), Tile::kSharedBytes, stream, shape,
         grid.plan, map(a.key_cache), map(a.value_cache), static_cast<T*>(a.out),
         static_cast<const T*>(a.q.data), paged_scratch_of(stream), added);
}

template <class T, class Stored>
void attend(const AttentionArguments& a, const PagedNew<Stored>& added, const Stream& stream) {
  constexpr int kMore = 2 / sizeof(Stored);  // scales stages for equally many bytes in flight
  const PagedShape shape(a, true);
  const auto run = [&](auto few, auto some) {
    if (a.queries->max_seqlen() * shape.group <= 8) {
      launch_tile<decltype(few)>(a, shape, added, stream);
    } else {
      launch_tile<decltype(some)>(a, shape, added, stream);
    }
  };
  if (a.head_dim == 64) {
    return run(PagedTmaTile<T, Stored, 64, 1, 2 * kMore, 3>{},
               PagedTmaTile<T, Stored, 64, 2, 2 * kMore, 3>{});
  }
  if (a.head_dim == 128) {
    return run(PagedTmaTile<T, Stored, 128, 1, kMore, 3>{},
               PagedTmaTile<T, Stored, 128, 2, kMore, 3>{});
  }
  run(PagedTmaTile<T, Stored, 256, 1, kMore, 1>{}, PagedTmaTile<T, Stored, 256, 2, kMore, 1>{});
}

template <class Stored>
PagedNew<Stored> new_tokens(const AttentionArguments& a, const RotaryArguments* rotary) {
  PagedNew<Stored> added = {static_cast<Stored*>(a.key_cache), static_cast<Stored*>(a.value_cache)};
  if (rotary) {
    added.positions = rotary->positions;
    added.cos = rotary->cos;
    added.sin = rotary->sin;
    added.angles = rotary->angles;
  }
  return added;
}

// Returns whether rows are q | k | v: new keys and values are read from behind the queries.
template <class T>
bool behind_queries(const AttentionArguments& a) {
  const T* const k = static_cast<const T*>(a.q.data) + a.heads * a.head_dim;
  return a.k.data == k && a.v.data == k + a.kv_heads * a.head_dim && a.k.stride == a.q.stride &&
         a.v.stride == a.q.stride;
}

// Returns whether the kernel can apply RoPE: it reads two angles at once and rotates whole heads.
bool angles_fit(const RotaryArguments& rotary) {
  const auto aligned = [](const float* table) {
    return reinterpret_cast<uintptr_t>(table) % sizeof(float2) == 0;
  };
  return rotary.rotary_dim == rotary.head_dim && aligned(rotary.cos) && aligned(rotary.sin);
}

}  // namespace

bool sm90_paged_fits(const AttentionArguments& a) {
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  return hopper() && !a.bias && (a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256) &&
         a.pages->page_size() >= AnyTile::kUnit && aligned(a.key_cache, 0) &&
         aligned(a.value_cache, 0) && aligned(a.q.data, a.q.stride) &&
         aligned(a.out, a.out_stride) &&
         a.cache_pages * a.kv_heads * a.pages->page_size() < INT32_MAX;
}

template <class T>
void sm90_paged_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.cache_format.float8) {
    attend<T, Float8>(a, {}, stream);
  } else {
    attend<T, T>(a, {}, stream);
  }
}

template <class T>
bool sm90_cached_attention(const AttentionArguments& a, const RotaryArguments* rotary,
                           const Stream& stream) {
  const bool whole = a.queries->max_seqlen() * (a.heads / a.kv_heads) <= AnyTile::kRows;
  if (!whole || !sm90_paged_fits(a) || !behind_queries<T>(a)) return false;
  if (rotary && !angles_fit(*rotary)) return false;
  if (a.cache_format.float8) {
    attend<T, Float8>(a, new_tokens<Float8>(a, rotary), stream);
  } else {
    attend<T, T>(a, new_tokens<T>(a, rotary), stream);
  }
  return true;
}

#define INSTANTIATE(T)                                                                      \
  template void sm90_paged_attention<T>(const AttentionArguments&, const Stream&);          \
  template bool sm90_cached_attention<T>(const AttentionArguments&, const RotaryArguments*, \
                                         const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
