// What the blocks of Hopper's attention work on: items, a tile of queries of one head each. The
// grid is no larger than the device; each block takes one item of every round over the grid.
#pragma once

#include <cstdint>

#include "cuda/query_tile.h"

namespace fusewire::cuda::sm90 {

struct AttentionItem {
  QueryTile tile;  // length 0: no more items
  int head;
};

// Items of ragged lengths are dealt longest first and back and forth, so that blocks end together.
// In the block's shared memory, for up to kMost sequences; more are many items a block, whose
// lengths average out.
struct SequenceOrder {
  static constexpr int kMost = 512;
  int length_of[kMost];  // in the batch's order
  int token[kMost], length[kMost];
  int tiles_through[kMost];  // of the sequences up to this one

  // All threads of the block; they meet before the order is read.
  __device__ __forceinline__ void sort(const int32_t* offsets, int sequences) {
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) {
      length_of[i] = offsets[i + 1] - offsets[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) {
      const int mine = length_of[i];
      int rank = 0;
#pragma unroll 8
      for (int j = 0; j < sequences; ++j) {
        const int other = length_of[j];
        rank += other > mine || (other == mine && j < i);
      }
      token[rank] = offsets[i];
      length[rank] = mine;
    }
  }

  // One warp, after the sort.
  template <int kRows>
  __device__ __forceinline__ void count_tiles(int sequences) {
    const int lane = threadIdx.x % 32, each = (sequences + 31) / 32;
    const int begin = min(lane * each, sequences), end = min(begin + each, sequences);
    int tiles = 0;
    for (int i = begin; i < end; ++i) tiles += (length[i] + kRows - 1) / kRows;
    int through = tiles;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    through -= tiles;
    for (int i = begin; i < end; ++i) {
      through += (length[i] + kRows - 1) / kRows;
      tiles_through[i] = through;
    }
    __syncwarp();
  }
};

// One warp walks over its block's items.
template <int kRows>
class AttentionItems {
 public:
  // `order` has been sorted, or is null: then items are taken in the batch's order.
  __device__ __forceinline__ AttentionItems(const int32_t* offsets, SequenceOrder* order,
                                            int sequences, int heads, int most)
      : offsets_(offsets), order_(order), sequences_(sequences), heads_(heads), most_(most) {
    if (order_) order_->template count_tiles<kRows>(sequences);
  }

  __device__ __forceinline__ AttentionItem next() {
    const int place = order_ && round_ % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int number = round_++ * gridDim.x + place;
    if (number >= most_) return {{0, 0, 0}, 0};
    const int tile = number / heads_;
    return {order_ ? find(tile) : find_query_tile<kRows>(offsets_, sequences_, tile),
            number % heads_};
  }

 private:
  __device__ __forceinline__ QueryTile find(int tile) {
    while (at_ < sequences_ && tile >= order_->tiles_through[at_]) ++at_;
    if (at_ == sequences_) return {0, 0, 0};
    const int before = at_ ? order_->tiles_through[at_ - 1] : 0;
    return {order_->token[at_], order_->length[at_], (tile - before) * kRows};
  }

  const int32_t* offsets_;
  SequenceOrder* order_;
  int sequences_, heads_, most_;
  int round_ = 0, at_ = 0;
};

}  // namespace fusewire::cuda::sm90
