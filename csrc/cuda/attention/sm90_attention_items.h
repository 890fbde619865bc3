// What the blocks of Hopper's attention work on: items, a tile of queries of one head each. The
// grid is no larger than the device; each team of a block has a place and takes one item of every
// round over all places.
#pragma once

#include <cstdint>

#include "cuda/attention/query_tile.h"

namespace fusewire::cuda::sm90 {

struct alignas(16) AttentionItem {
  QueryTile tile;  // length 0: no more items
  int head;
};

// Out of shared memory, by the lane that also tells the feeding warp that it has been read: what
// racecheck can follow.
__device__ __forceinline__ AttentionItem read_item(const AttentionItem& item) {
  int4 words = {};
  if (threadIdx.x % 32 == 0) words = *reinterpret_cast<const int4*>(&item);
  const auto of_all = [](int word) { return __shfl_sync(0xffffffffu, word, 0); };
  return {{of_all(words.x), of_all(words.y), of_all(words.z)}, of_all(words.w)};
}

// Tiles of ragged sequences are dealt dearest first and back and forth, so that places end
// together. In the block's shared memory, for up to kMost tiles; more are many items a place, whose
// costs average out.
struct TileOrder {
  static constexpr int kMost = 512;
  struct Costs {
    int length;
    int full, full_key;  // how many tiles have all their rows, and what each costs
    int rest_key;        // of the last tile, which has not; -1: there is none
  };
  Costs costs[kMost];  // of the sequences
  QueryTile tile[kMost];
  int tiles;

  // All threads of the block; they meet before the order is read.
  template <int kRows>
  __device__ __forceinline__ void sort(const int32_t* offsets, int sequences) {
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) {
      const int length = offsets[i + 1] - offsets[i], rest = length % kRows;
      // A tile of keys costs each warpgroup about 2, and what they share 3. No two sequences
      // have the same key.
      const auto key = [&](int rows, int last) {
        return (length + 63) / 64 * (2 * ((rows + 63) / 64) + 3) * (2 * kMost) + 2 * i + last;
      };
      costs[i] = {length, length / kRows, key(kRows, 0), rest ? key(rest, 1) : -1};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * sequences; i += blockDim.x) {
      const Costs mine = costs[i / 2];
      const bool last = i % 2;
      const int key = last ? mine.rest_key : mine.full_key;
      int before = 0, all = 0;
#pragma unroll 4
      for (int j = 0; j < sequences; ++j) {
        const Costs other = costs[j];
        before += (other.full_key > key ? other.full : 0) + (other.rest_key > key);
        all += other.full + (other.rest_key >= 0);
      }
      if (i == 0) tiles = all;
      const int token = offsets[i / 2], count = last ? key >= 0 : mine.full;
      for (int t = 0; t < count; ++t) {
        tile[before + t] = {token, mine.length, (last ? mine.full : t) * kRows};
      }
    }
  }
};

// One warp walks over the items of its place.
template <int kRows>
class AttentionItems {
 public:
  // `order` has been sorted, or is null: then items are taken in the batch's order.
  __device__ __forceinline__ AttentionItems(const int32_t* offsets, const TileOrder* order,
                                            int sequences, int heads, int most, int place,
                                            int places)
      : offsets_(offsets),
        order_(order),
        sequences_(sequences),
        heads_(heads),
        most_(most),
        place_(place),
        places_(places) {}

  __device__ __forceinline__ AttentionItem next() {
    const int place = order_ && round_ % 2 ? places_ - 1 - place_ : place_;
    const int number = round_++ * places_ + place;
    if (number >= most_) return {{0, 0, 0}, 0};
    const int tile = static_cast<uint32_t>(number) / heads_;
    return {order_ ? find(tile) : find_query_tile<kRows>(offsets_, sequences_, tile),
            static_cast<int>(number - tile * heads_)};
  }

 private:
  __device__ __forceinline__ QueryTile find(int tile) const {
    return tile < order_->tiles ? order_->tile[tile] : QueryTile{0, 0, 0};
  }

  const int32_t* offsets_;
  const TileOrder* order_;
  int sequences_;
  uint32_t heads_;
  int most_, place_, places_;
  int round_ = 0;
};

}  // namespace fusewire::cuda::sm90
