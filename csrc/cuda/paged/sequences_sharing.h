// Beams of one source, and sequences that were forked, read the same pages: those that are
// neighbours are found here, so that one warp reads keys and values for all of them.
#pragma once

#include "cuda/paged/paged_attention.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// A warp: how many sequences from `sequence` on, within its kMostRows, read the very pages that it
// reads, at most kMostPages; 0 where the one before does too. kLanes lanes compare a sequence's
// pages with those of the one before.
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
  unsigned begins = __ballot_sync(kWholeWarp, differs);  // of a sequence in the first of its lanes
#pragma unroll
  for (int other_lane = 1; other_lane < kLanes; other_lane *= 2) begins |= begins >> other_lane;
  const int own = (sequence - first) * kLanes;
  if ((begins >> own & 1) == 0) return 0;
  int count = 1;
  while (own + count * kLanes < kWarp && (begins >> (own + count * kLanes) & 1) == 0) ++count;
  return count;
}

// The same of sequences with many pages, of which each lane compares one in a round.
template <int kMostRows>
__device__ __forceinline__ int sequences_sharing_many(const PagedShape& shape, int sequence) {
  const int lane = threadIdx.x % kWarp, first = sequence / kMostRows * kMostRows;
  bool begins_here = true;  // of a sequence in its lane
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
