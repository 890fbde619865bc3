// Where blocks that share the keys of a tile leave their parts of the answer for the last of them.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

constexpr int kScratchCounters = 4096;
constexpr int64_t kScratchPartBytes = int64_t{16} << 20;

// A slot is one block's part: kRows rows of kDim sums, and for each row its highest score and the
// sum of its weights.
struct PagedScratch {
  int32_t* counters;  // of the first slots of tiles; all 0 between kernels
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

// The stream's own, for its work is serial. It is kept for ever, for graphs hold its address: a
// graph that was captured on a stream is replayed on it, or in its order.
PagedScratch paged_scratch_of(const Stream& stream);

}  // namespace fusewire::cuda
