// Beams of one source, and sequences that were forked, read the same pages. These functions find
// such neighbours, so that one warp reads keys and values for all of them.
#pragma once

#include "cuda/paged/paged_attention.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// Returns how many sequences from `sequence` on, within its aligned group of kMostRows, read
// exactly the same pages, at most kMostPages; 0 if the sequence before it in the group does too.
// All lanes of a warp call it; kLanes lanes compare the pages of a sequence with those of the one
// before.
template <int kMostRows, int kMostPages>
__device__ __forceinline__ int sequences_sharing(const PagedShape& shape, int sequence) {
  constexpr int kLanes = kWarp / kMostRows, kPages = kMostPages / kLanes;
  static_assert(kLanes * kMostRows == kWarp && kLanes * kPages == kMostPages);
  const int lane = threadIdx.x % kWarp;
  const int first = sequence / kMostRows * kMostRows, other = first + lane / kLanes;
  bool differs = true;
  if (other > first && other < shape.sequences) {
    const int context = shape.contexts[other];
    differs = shape.contexts[other - 1] != context ||
              shape.offsets[other + 1] == shape.offsets[other] ||
              shape.offsets[other] == shape.offsets[other - 1];
    const int32_t* const table = shape.table + int64_t{other} * shape.table_width;
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const int page = lane % kLanes * kPages + i;
      if (page << shape.page_shift < context && page < shape.table_width) {
        differs |= table[page] != table[page - shape.table_width];
      }
    }
  }
  // The bit of a sequence's first lane: whether it differs from the sequence before.
  unsigned begins = __ballot_sync(kWholeWarp, differs);
#pragma unroll
  for (int other_lane = 1; other_lane < kLanes; other_lane *= 2) begins |= begins >> other_lane;
  const int own = (sequence - first) * kLanes;
  if ((begins >> own & 1) == 0) return 0;
  int count = 1;
  while (own + count * kLanes < kWarp && (begins >> (own + count * kLanes) & 1) == 0) ++count;
  return count;
}

// Returns the same for sequences with many pages; in each round every lane compares one page of all
// sequences.
template <int kMostRows>
__device__ __forceinline__ int sequences_sharing_many(const PagedShape& shape, int sequence) {
  const int lane = threadIdx.x % kWarp, first = sequence / kMostRows * kMostRows;
  bool begins_here = true;  // whether the lane's sequence differs from the one before
  if (const int other = first + lane; lane > 0 && lane < kMostRows && other < shape.sequences) {
    begins_here = shape.contexts[other - 1] != shape.contexts[other] ||
                  shape.offsets[other + 1] == shape.offsets[other] ||
                  shape.offsets[other] == shape.offsets[other - 1];
  }
  const int32_t* const table = shape.table + int64_t{first} * shape.table_width;
  const int context = shape.contexts[sequence];
  unsigned differing = 0;
  for (int page = lane; page << shape.page_shift < context && page < shape.table_width;
       page += kWarp) {
    int pages[kMostRows];
#pragma unroll
    for (int i = 0; i < kMostRows; ++i) {
      pages[i] = first + i < shape.sequences ? table[i * shape.table_width + page] : 0;
    }
#pragma unroll
    for (int i = 1; i < kMostRows; ++i) {
      differing |= static_cast<unsigned>(pages[i] != pages[i - 1]) << i;
    }
  }
  const unsigned begins =
      __ballot_sync(kWholeWarp, begins_here) | __reduce_or_sync(kWholeWarp, differing);
  const int own = sequence - first;
  if ((begins >> own & 1) == 0) return 0;
  int count = 1;
  while (own + count < kMostRows && (begins >> (own + count) & 1) == 0) ++count;
  return count;
}

}  // namespace fusewire::cuda
