// Writes to the pages of a KV cache: keys and values of new tokens, and copies of pages.
#include <algorithm>
#include <type_traits>

#include "cuda/attention/query_tile.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/paged/stored.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

struct Cache {
  const int32_t *offsets, *contexts, *table;
  int sequences, table_width, page_shift;
  int kv_heads, head_dim;
  float k_scale, v_scale;
};

// Stores the keys and values of new tokens in their pages. A thread processes one access: kWidth
// columns of the key and of the value of a kv head.
template <class Stored, class T, int kWidth>
__global__ void __launch_bounds__(256)
    store_rows(Stored* keys, Stored* values, const T* k, int64_t k_stride, const T* v,
               int64_t v_stride, Cache cache, int64_t tokens) {
  using From = Pack<T, kWidth>;
  using To = Pack<Stored, kWidth>;
  let_next_start();
  const int per_head = cache.head_dim / kWidth;
  const int access = static_cast<int>(tile_access<1>(0));
  const int head = access / per_head, c = access % per_head * kWidth;
  const bool wanted = head < cache.kv_heads;
  wait_for_inputs();
  if (!wanted) return;
  // A batch replayed in a bucket may have fewer tokens than the bucket has rows.
  const int last = min(static_cast<int>(tokens), cache.offsets[cache.sequences]);
#pragma unroll 1
  for (int64_t row = tile_row(); row < last; row += tile_row_step()) {
    const int sequence = sequence_of(cache.offsets, cache.sequences, static_cast<int>(row));
    const int end = cache.offsets[sequence + 1];
    const int position = cache.contexts[sequence] - end + static_cast<int>(row);
    if (position < 0) continue;  // cannot happen in a batch that was checked
    const int page =
        cache.table[int64_t{sequence} * cache.table_width + (position >> cache.page_shift)];
    const int in_page = position & ((1 << cache.page_shift) - 1);
    const int64_t to =
        (((int64_t{page} * cache.kv_heads + head) << cache.page_shift) + in_page) * cache.head_dim +
        c;
    const int column = head * cache.head_dim + c;
    const From key = *reinterpret_cast<const From*>(k + row * k_stride + column);
    const From value = *reinterpret_cast<const From*>(v + row * v_stride + column);
    *reinterpret_cast<To*>(keys + to) = stored<Stored>(key, cache.k_scale);
    *reinterpret_cast<To*>(values + to) = stored<Stored>(value, cache.v_scale);
  }
}

constexpr int kCopyBlock = 256, kCopyUnroll = 4;

// The shape of a cache, in packs of elements.
struct PackedPages {
  int64_t pages;
  int heads, packs, leading;  // packs per head, and how many of them are copied
};

// Copies the leading packs of each head between pages. Block (x, y, z) copies the x-th stretch of
// the y-th copy in plane z.
template <class P>
__global__ void __launch_bounds__(kCopyBlock)
    copy_leading(P* cache, PackedPages of, const int64_t* from, const int64_t* to) {
  // No let_next_start(): attention fetches pages before its wait_for_inputs() (sm90_paged.h).
  wait_for_inputs();
  const int64_t source = from[blockIdx.y], target = to[blockIdx.y];
  if (source < 0 || source >= of.pages || target < 0 || target >= of.pages) return;
  const int64_t page = int64_t{of.heads} * of.packs;
  P* const plane = cache + blockIdx.z * of.pages * page;
  const int first = static_cast<int>(blockIdx.x) * (kCopyBlock * kCopyUnroll) + threadIdx.x;
  P held[kCopyUnroll];
  int places[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const int at = first + i * kCopyBlock, head = at / of.leading;
    places[i] = head < of.heads ? head * of.packs + at % of.leading : -1;
    if (places[i] >= 0) held[i] = plane[source * page + places[i]];
  }
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    if (places[i] >= 0) plane[target * page + places[i]] = held[i];
  }
}

}  // namespace

template <class T>
void store_kv(void* keys, void* values, const CacheFormat& format, const HeadRows& k,
              const HeadRows& v, const PagedBatch& batch, int64_t kv_heads, int64_t head_dim,
              const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const Cache cache = {batch.batch().device_offsets(),
                       batch.device_context_lengths(),
                       batch.device_block_table(),
                       static_cast<int>(batch.sequences()),
                       static_cast<int>(batch.table_width()),
                       __builtin_ctzll(static_cast<uint64_t>(batch.page_size())),
                       static_cast<int>(kv_heads),
                       static_cast<int>(head_dim),
                       format.k_scale,
                       format.v_scale};
  const auto store = [&](auto* to_keys, auto* to_values, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<1>(batch.tokens(), kv_heads * (head_dim / kWidth));
    launch(store_rows<std::remove_pointer_t<decltype(to_keys)>, T, kWidth>, tiles.grid, tiles.block,
           0, stream, to_keys, to_values, static_cast<const T*>(k.data), k.stride,
           static_cast<const T*>(v.data), v.stride, cache, batch.tokens());
  };
  const auto run = [&](auto width) {
    if constexpr (sizeof(T) == 2) {
      if (format.float8) {
        return store(static_cast<Float8*>(keys), static_cast<Float8*>(values), width);
      }
    }
    store(static_cast<T*>(keys), static_cast<T*>(values), width);
  };
  if (head_dim % n == 0 && vectors_fit<T>(k.data, k.stride) && vectors_fit<T>(v.data, v.stride) &&
      vectors_fit<T>(keys, 0) && vectors_fit<T>(values, 0)) {
    run(std::integral_constant<int, n>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

template <class T>
void copy_pages(const CopiedPages& pages, const int64_t* from, const int64_t* to, int64_t count,
                const Stream& stream) {
  constexpr int64_t kMost = 65535;  // the largest y and z dimension of a grid
  const auto run = [&](auto* cache, int64_t width) {
    const PackedPages of = {pages.pages, static_cast<int>(pages.heads),
                            static_cast<int>(pages.elements / width),
                            static_cast<int>(pages.leading / width)};
    const int64_t packs = pages.heads * of.leading;
    const int64_t stretches = (packs + kCopyBlock * kCopyUnroll - 1) / (kCopyBlock * kCopyUnroll);
    for (int64_t plane = 0; plane < pages.planes; plane += kMost) {
      for (int64_t first = 0; first < count; first += kMost) {
        const dim3 grid(static_cast<unsigned>(stretches),
                        static_cast<unsigned>(std::min(count - first, kMost)),
                        static_cast<unsigned>(std::min(pages.planes - plane, kMost)));
        launch(copy_leading<std::remove_pointer_t<decltype(cache)>>, grid, kCopyBlock, 0, stream,
               cache + plane * pages.pages * pages.heads * of.packs, of, from + first, to + first);
      }
    }
  };
  constexpr int n = Vector<T>::kSize;
  if (vectors_fit<T>(pages.cache, pages.elements) && pages.leading % n == 0) {
    run(static_cast<Vector<T>*>(pages.cache), n);
  } else {
    run(static_cast<T*>(pages.cache), 1);
  }
}

#define INSTANTIATE(T)                                                                          \
  template void store_kv<T>(void*, void*, const CacheFormat&, const HeadRows&, const HeadRows&, \
                            const PagedBatch&, int64_t, int64_t, const Stream&);                \
  template void copy_pages<T>(const CopiedPages&, const int64_t*, const int64_t*, int64_t,      \
                              const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
