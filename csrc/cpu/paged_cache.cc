// Keys and values of new tokens into their pages, and pages copied.
#include "cpu/paged_cache.h"

#include <cstring>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"

namespace fusewire::FUSEWIRE_TARGET {

void store_kv(void* keys, void* values, const void* qkv, int64_t qkv_stride,
              const PagedBatch& batch, int64_t heads, int64_t kv_heads, int64_t head_dim,
              const Stream&) {
  const size_t bytes = static_cast<size_t>(head_dim) * sizeof(float);
  parallel_for(batch.sequences(), 1, [&](int64_t sequence, int64_t, int) {
    const CachedSequence cached(batch, sequence, kv_heads, head_dim);
    for (int64_t i = 0; i < cached.added; ++i) {
      const float* k =
          static_cast<const float*>(qkv) + (cached.first_token + i) * qkv_stride + heads * head_dim;
      const float* v = k + kv_heads * head_dim;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t at = cached.row(head, cached.context - cached.added + i);
        std::memcpy(static_cast<float*>(keys) + at, k + head * head_dim, bytes);
        std::memcpy(static_cast<float*>(values) + at, v + head * head_dim, bytes);
      }
    }
  });
}

void copy_pages(void* cache, int64_t planes, int64_t pages, int64_t elements, const int64_t* from,
                const int64_t* to, int64_t count, const Stream&) {
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t page : {from[i], to[i]}) {
      if (page < 0 || page >= pages) {
        fail("copy_pages: page ", i, ": got ", page, ", wanted 0 to ", pages - 1);
      }
    }
  }
  parallel_for(planes * count, 1, [&](int64_t task, int64_t, int) {
    float* plane = static_cast<float*>(cache) + task / count * pages * elements;
    const int64_t i = task % count;
    std::memcpy(plane + to[i] * elements, plane + from[i] * elements,
                static_cast<size_t>(elements) * sizeof(float));
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
