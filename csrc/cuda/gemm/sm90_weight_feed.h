// Loads a block's channels of a weight into a pipeline stage.
#pragma once

#include "cuda/gemm/int4_weight.h"
#include "cuda/gemm/sm90_gemm_stage.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

template <class Element>
struct WeightFeed {
  static constexpr int kChannelBytes = 128;  // per stage
  CUtensorMap rows;

  __device__ __forceinline__ void prefetch() const { map_prefetch(&rows); }

  // Loads kChannels channels, from `channel` on, of the block-th stage. Called by one thread.
  template <int kChannels>
  __device__ __forceinline__ void load(uint8_t* to, int channel, int block,
                                       uint64_t* barrier) const {
    tma_load(to, &rows, channel, block * kStageColumns<Element>, barrier);
  }
};

// Channels are eight rows of a, then the same eight of b, and so on, so that a thread's two
// channels, 8 apart, are a pair. The weight itself is as it is for other products: `rows` has its
// columns, 8 rows, the halves a and b, and the groups of 8 rows as dimensions.
template <class T>
struct WeightFeed<Gated<T>> {
  static constexpr int kChannelBytes = 128;
  CUtensorMap rows;

  __device__ __forceinline__ void prefetch() const { map_prefetch(&rows); }

  template <int kChannels>
  __device__ __forceinline__ void load(uint8_t* to, int channel, int block,
                                       uint64_t* barrier) const {
    tma_load_groups(to, &rows, channel / 16, block * kStageColumns<T>, barrier);
  }
};

// A stage has codes [tiles][kUnitBytes], then words [tiles][two groups]: those of the unit's groups
// or, with coarse groups, of its group and an unused next one, so that stages have the same size
// and alignment.
template <class T, bool kFine>
struct WeightFeed<Int4<T, kFine>> {
  static constexpr int kTileWordBytes = 2 * nibbles::kTileChannels * 4;
  static constexpr int kChannelBytes =
      (nibbles::kUnitBytes + kTileWordBytes) / nibbles::kTileChannels;
  CUtensorMap codes, words;  // rows of tiles, in elements of 4 bytes
  int shift;                 // group_shift

  __device__ __forceinline__ void prefetch() const {
    map_prefetch(&codes);
    map_prefetch(&words);
  }

  template <int kChannels>
  __device__ __forceinline__ void load(uint8_t* to, int channel, int block,
                                       uint64_t* barrier) const {
    constexpr int kTiles = kChannels / nibbles::kTileChannels;
    const int tile = channel / nibbles::kTileChannels;
    const int group = kFine ? 2 * block : block >> shift;
    tma_load(to, &codes, tile, block * nibbles::kUnitBytes / 4, barrier);
    tma_load(to + kTiles * nibbles::kUnitBytes, &words, tile, group * nibbles::kTileChannels,
             barrier);
  }
};

}  // namespace fusewire::cuda::sm90
