// Stores the keys and values of new tokens in their pages, and copies pages.
#include "cpu/paged_cache.h"

#include <cstring>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"

namespace fusewire::FUSEWIRE_TARGET {

void store_kv(void* keys, void* values, const CacheFormat&, const HeadRows& k, const HeadRows& v,
              const PagedBatch& batch, int64_t kv_heads, int64_t head_dim, const Stream&) {
  const size_t bytes = static_cast<size_t>(head_dim) * sizeof(float);
  parallel_for(batch.sequences(), 1, [&](int64_t sequence, int64_t, int) {
    const CachedSequence cached(batch, sequence, kv_heads, head_dim);
    for (int64_t i = 0; i < cached.added; ++i) {
      const int64_t token = cached.first_token + i;
      const float* key = static_cast<const float*>(k.data) + token * k.stride;
      const float* value = static_cast<const float*>(v.data) + token * v.stride;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t at = cached.row(head, cached.context - cached.added + i);
        std::memcpy(static_cast<float*>(keys) + at, key + head * head_dim, bytes);
        std::memcpy(static_cast<float*>(values) + at, value + head * head_dim, bytes);
      }
    }
  });
}

void copy_pages(const CopiedPages& pages, const int64_t* from, const int64_t* to, int64_t count,
                const Stream&) {
  const auto none = [&](int64_t i) { return from[i] == -1 && to[i] == -1; };
  for (int64_t i = 0; i < count; ++i) {
    if (none(i)) continue;
    for (const int64_t page : {from[i], to[i]}) {
      if (page < 0 || page >= pages.pages) {
        fail("copy_pages: page ", i, ": got ", page, ", wanted 0 to ", pages.pages - 1);
      }
    }
  }
  const int64_t page_elements = pages.heads * pages.elements;
  parallel_for(pages.planes * count, 1, [&](int64_t task, int64_t, int) {
    float* plane = static_cast<float*>(pages.cache) + task / count * pages.pages * page_elements;
    const int64_t i = task % count;
    if (none(i)) return;
    for (int64_t head = 0; head < pages.heads; ++head) {
      float* const heads = plane + head * pages.elements;
      std::memcpy(heads + to[i] * page_elements, heads + from[i] * page_elements,
                  static_cast<size_t>(pages.leading) * sizeof(float));
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
