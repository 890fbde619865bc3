// Scratch memory in which the blocks that divide the keys of a tile leave their parts of the output
// for the last of them.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

constexpr int kScratchCounters = 4096;
constexpr int64_t kScratchPartBytes = int64_t{16} << 20;

// A slot holds one block's part: kRows rows of kDim sums, and for each row its highest score and
// the sum of its weights.
struct PagedScratch {
  int32_t* counters;  // one per slot, used for the first slot of a tile; all 0 between kernels
  char* parts;

  template <class Tile>
  static constexpr int64_t slot_bytes() {
    return Tile::kRows * (Tile::kDim + 2) * int64_t{4};
  }
  template <class Tile>
  static constexpr int slots() {
    constexpr int64_t room = kScratchPartBytes / slot_bytes<Tile>();
    return static_cast<int>(room < kScratchCounters ? room : kScratchCounters);
  }
  template <class Tile>
  __device__ __forceinline__ float* sums(int slot, int row) const {
    return reinterpret_cast<float*>(parts) + (slot * Tile::kRows + row) * int64_t{Tile::kDim};
  }
  template <class Tile>
  __device__ __forceinline__ float2* weight(int slot, int row) const {
    char* after = parts + slots<Tile>() * (Tile::kRows * Tile::kDim * int64_t{4});
    return reinterpret_cast<float2*>(after) + (slot * Tile::kRows + row);
  }
};

// Returns the scratch memory of a stream. Each stream has its own, since its kernels run one after
// another. It is never freed, because graphs hold its address: a graph that was captured on a
// stream is replayed on that stream or ordered with it.
PagedScratch paged_scratch_of(const Stream& stream);

}  // namespace fusewire::cuda
