// The shared memory of a block of flash_backward.cu.
#pragma once

#include "cuda/attention/shared_rows.h"
#include "cuda/attention/tiled_work.h"

namespace fusewire::cuda {

// A block owns 64 rows, 16 per warp: queries (q and dout) or keys (k and v). It loops over the rows
// of the other side in tiles of kOther, two of which are in flight. kDim is the padded head_dim.
template <class Element, int dim, int other>
struct BackwardTile : SharedRows<Element, dim, other> {
  static constexpr int kOwn = 64, kOther = other, kWarpRows = 16;
  static constexpr int kBlocks = dim <= 64 ? 3 : 2;  // per multiprocessor
  static constexpr int kOwnBytes = kOwn * BackwardTile::kStride;
  static constexpr int kOtherBytes = kOther * BackwardTile::kStride;
  static constexpr int kMaskBytes = kOwn * kOther / kDropoutGroup;

  // The other rows. If they are queries, also the log_sum_exp and the dot of each.
  struct Stage {
    alignas(128) char first[kOtherBytes];   // q or k
    alignas(128) char second[kOtherBytes];  // dout or v
    float log_sum_exp[kOther], dots[kOther];
    // The dropout mask: a byte per query and group of 8 keys, with a bit set for each key kept.
    uint8_t mask[kMaskBytes];
  };
  struct Memory {
    alignas(128) char first[kOwnBytes];
    alignas(128) char second[kOwnBytes];
    Stage stages[2];
    float log_sum_exp[kOwn], dots[kOwn];
  };
};

}  // namespace fusewire::cuda
