// A matrix product for few tokens (sm90_gemm_small.h): its arguments, and how blocks share it.
#pragma once

#include <algorithm>

#include "cuda/gemm/sm90_gemm_epilogue.h"

namespace fusewire::cuda::sm90 {

struct SmallProblem {
  int m, n, k_blocks, stages, slices;
  const void* bias;      // or null
  const void* residual;  // or null
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  const float *token_scales, *channel_scales;  // of 8 bits
  int64_t token_scale_stride;                  // of those in blocks, from one to the next
  ActivationFormula activation;
};

// kChannelBytes: of the weight in a stage. kInBlocks_: scales of the tokens come with each stage.
template <int kGroups_, int kTokens_, int kChannelBytes = 128, bool kInBlocks_ = false>
struct SmallShape {
  static constexpr int kGroups = kGroups_, kTokens = kTokens_, kChannels = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 32;
  static constexpr int kWeightBytes = kChannels * kChannelBytes,
                       kStageBytes = kWeightBytes + kTokens * 128;
  static constexpr int kStageScaleBytes = kInBlocks_ ? kTokens * 4 : 0;
  // Arrivals of a warpgroup that has read a stage: scales are read by each warp.
  static constexpr int kReleases = kInBlocks_ ? 4 : 1;
  static constexpr int kMostStages = 16;
  // Tokens are dealt out to the slices' blocks in columns of 8: 4 sums a thread. A block finishes
  // kBatch of its columns at a time.
  static constexpr int kColumns = kTokens / 8, kSumBytes = kConsumers * 16;
  static constexpr int kBatch = kChannels * kTokens <= 64 * 32 ? 1 : 2;
  static constexpr int kBarrierBytes = (2 * kMostStages + 1) * 8;

  // Of a block: for each of its columns the slices' sums.
  __host__ __device__ static int exchange_bytes(int slices) {
    return (kColumns + slices - 1) / slices * slices * kSumBytes;
  }
  // Blocks of many tokens keep their ring short: the next kernel's then find room beside them and
  // fetch their weights in time. Those of few tokens hold their slice as a whole.
  static int stages(int k_blocks, int slices) {
    constexpr int kAllBytes = 227 * 1024, kRingBytes = 160 * 1024, kShortBytes = 90 * 1024;
    constexpr int kLeastStages = 4, kBytes = kStageBytes + kStageScaleBytes;
    const int others = kBarrierBytes + exchange_bytes(slices);
    int most = std::min({k_blocks, kMostStages, std::min(kRingBytes, kAllBytes - others) / kBytes});
    if (kTokens >= 64) {
      most = std::min(most, std::max(kLeastStages, (kShortBytes - others) / kBytes));
    }
    return most;
  }
  static int shared_bytes(int stages, int slices) {
    return stages * (kStageBytes + kStageScaleBytes) + exchange_bytes(slices) + kBarrierBytes;
  }
};

}  // namespace fusewire::cuda::sm90
