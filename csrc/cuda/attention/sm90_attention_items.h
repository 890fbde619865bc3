// The work items of attention on Hopper. An item is a tile of queries of one head. The grid is no
// larger than the device; each team of a block is a place, and takes one item of each round over
// all places.
#pragma once

#include <cstdint>

#include "cuda/attention/query_tile.h"

namespace fusewire::cuda::sm90 {

struct alignas(16) AttentionItem {
  QueryTile tile;  // length 0: no more items
  int head;
};

// Reads an item from shared memory and returns it to all lanes. Lane 0 reads it, because that lane
// also tells the producer that it has been read, an order that racecheck can follow.
__device__ __forceinline__ AttentionItem read_item(const AttentionItem& item) {
  int4 words = {};
  if (threadIdx.x % 32 == 0) words = *reinterpret_cast<const int4*>(&item);
  const auto of_all = [](int word) { return __shfl_sync(0xffffffffu, word, 0); };
  return {{of_all(words.x), of_all(words.y), of_all(words.z)}, of_all(words.w)};
}

// Orders the tiles of sequences of different lengths by cost, the most expensive first. Rounds over
// the places alternate in direction, so that all places finish at about the same time. The order is
// in the block's shared memory, for up to kMost tiles. With more tiles, each place has many items,
// and their costs average out.
struct TileOrder {
  static constexpr int kMost = 512;
  struct Costs {
    int length;
    int full, full_key;  // the number of tiles with all rows, and the sort key of each
    int rest_key;        // the sort key of the partial last tile; -1: there is none
  };
  Costs costs[kMost];  // of each sequence
  QueryTile tile[kMost];
  int tiles;

  // Computes the order. All threads of the block call it and synchronise before they read the
  // order.
  template <int kRows>
  __device__ __forceinline__ void sort(const int32_t* offsets, int sequences) {
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) {
      const int length = offsets[i + 1] - offsets[i], rest = length % kRows;
      // A tile of keys costs about 2 per warpgroup, plus 3 for what they share. The index in the
      // lowest digits makes all keys different.
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

// Iterates over the items of a place. All lanes of one warp call next().
template <int kRows>
class AttentionItems {
 public:
  // `order` has been sorted, or is null: items are then taken in the order of the batch. `most` is
  // the number of items.
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
