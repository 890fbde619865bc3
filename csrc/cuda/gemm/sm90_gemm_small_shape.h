// A matrix product for few tokens (sm90_gemm_small.h): its arguments, and how blocks divide the
// work.
#pragma once

#include <algorithm>

#include "cuda/gemm/sm90_gemm_epilogue.h"

namespace fusewire::cuda::sm90 {

struct SmallProblem {
  int m, n, k_blocks, stages, slices;
  const void* bias;      // null: none
  const void* residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  const float *token_scales, *channel_scales;  // of 8-bit operands
  int64_t token_scale_stride;                  // from one block of k to the next
  ActivationFormula activation;
};

// kChannelBytes: bytes of a weight's channel in a stage. kInBlocks_: the scales of tokens are
// loaded with each stage.
template <int kGroups_, int kTokens_, int kChannelBytes = 128, bool kInBlocks_ = false>
struct SmallShape {
  static constexpr int kGroups = kGroups_, kTokens = kTokens_, kChannels = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 32;
  static constexpr int kWeightBytes = kChannels * kChannelBytes,
                       kStageBytes = kWeightBytes + kTokens * 128;
  static constexpr int kStageScaleBytes = kInBlocks_ ? kTokens * 4 : 0;
  // Arrivals of a warpgroup at a stage's empty barrier: scales are read by each warp.
  static constexpr int kReleases = kInBlocks_ ? 4 : 1;
  static constexpr int kMostStages = 16;
  // Tokens are distributed over the blocks of the slices in columns of 8: 4 sums per thread. A
  // block finishes kBatch of its columns at a time.
  static constexpr int kColumns = kTokens / 8, kSumBytes = kConsumers * 16;
  static constexpr int kBatch = kChannels * kTokens <= 64 * 32 ? 1 : 2;
  static constexpr int kBarrierBytes = (2 * kMostStages + 1) * 8;

  // Returns the size of the sums of all slices for each of a block's columns. Slices send them
  // while others still multiply. A single slice keeps them in the stages, which it has read by
  // then, so that another block fits on the multiprocessor.
  __host__ __device__ static int sum_bytes(int slices) {
    return (kColumns + slices - 1) / slices * slices * kSumBytes;
  }
  __host__ __device__ static int sums_offset(int stages, int slices) {
    return slices == 1 ? 0 : stages * kStageBytes;
  }
  // Returns the size of the stages and the sums.
  __host__ __device__ static int ring_bytes(int stages, int slices) {
    const int sums_end = sums_offset(stages, slices) + sum_bytes(slices);
    return sums_end > stages * kStageBytes ? sums_end : stages * kStageBytes;
  }
  // Blocks of many tokens keep their ring short, so that blocks of the next kernel fit beside them
  // and fetch their weights in time. Blocks of few tokens hold their whole slice.
  static int stages(int k_blocks, int slices) {
    constexpr int kAllBytes = 227 * 1024, kRingBytes = 160 * 1024, kShortBytes = 90 * 1024;
    constexpr int kLeastStages = 4, kBytes = kStageBytes + kStageScaleBytes;
    const int others = kBarrierBytes + (slices == 1 ? 0 : sum_bytes(slices));
    int most = std::min({k_blocks, kMostStages, std::min(kRingBytes, kAllBytes - others) / kBytes});
    if (kTokens >= 64) {
      most = std::min(most, std::max(kLeastStages, (kShortBytes - others) / kBytes));
    }
    return most;
  }
  static int shared_bytes(int stages, int slices) {
    return ring_bytes(stages, slices) + stages * kStageScaleBytes + kBarrierBytes;
  }
};

}  // namespace fusewire::cuda::sm90
