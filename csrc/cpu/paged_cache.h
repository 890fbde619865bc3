// One sequence of a paged batch: its number of tokens, and where each position's row is in its
// pages.
#pragma once

#include <cstdint>

#include "core/paged_batch.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

struct CachedSequence {
  CachedSequence(const PagedBatch& batch, int64_t sequence, int64_t kv_heads, int64_t head_dim)
      : first_token(batch.batch().begin()[sequence]),
        added(batch.batch().begin()[sequence + 1] - first_token),
        context(batch.context_lengths()[sequence]),
        head_dim(head_dim),
        page_shift(__builtin_ctzll(static_cast<unsigned long long>(batch.page_size()))),
        page_mask(batch.page_size() - 1),
        head_stride(batch.page_size() * head_dim),
        page_stride(kv_heads * head_stride),
        pages(batch.block_table() + sequence * batch.table_width()) {}

  // Returns the offset in keys, and in values, of the row of a position in a kv head.
  FUSEWIRE_INLINE int64_t row(int64_t head, int64_t position) const {
    return pages[position >> page_shift] * page_stride + head * head_stride +
           (position & page_mask) * head_dim;
  }

  int64_t first_token, added, context;  // row of its first new token; new tokens; positions in all
  int64_t head_dim;
  int page_shift;
  int64_t page_mask, head_stride, page_stride;
  const int32_t* pages;
};

}  // namespace fusewire::FUSEWIRE_TARGET
