// Products of e4m3 in blocks. A pipeline stage is a block of k, whose sums are multiplied by the
// scales of its tokens and channels and accumulated in fp32.
#pragma once

#include "core/weight.h"
#include "cuda/gemm/sm90_gemm_stage.h"
#include "cuda/reduce.h"

namespace fusewire::cuda::sm90 {

// The scales of a weight's block of rows along k. Whole warps ask for them one after the other;
// each lane loads every 32nd scale, 32 blocks ahead of its use.
class BlockScales {
 public:
  // Reads `blocks` scales, from block `first` on, of the kFloat8Block rows that contain `row`.
  __device__ __forceinline__ BlockScales(const float* scales, int rows, int k_blocks, int row,
                                         int first, int blocks)
      : at_(scales + int64_t{min(row, rows - 1) / static_cast<int>(kFloat8Block)} * k_blocks +
            first),
        blocks_(blocks),
        next_(ahead(0)) {}
  __device__ __forceinline__ float operator()(int block) {
    const int lane = block % kWarp;
    if (lane == 0) {
      held_ = next_;
      next_ = ahead(block + kWarp);
    }
    return __shfl_sync(kWholeWarp, held_, lane);
  }

 private:
  __device__ __forceinline__ float ahead(int block) const {
    block += threadIdx.x % kWarp;
    return block < blocks_ ? __ldg(at_ + block) : 0.0f;
  }

  const float* at_;
  int blocks_;
  float held_ = 0, next_;
};

// Adds the sums of a stage in blocks, times the scales of its tokens and `channel`, to d. The
// products must have ended.
template <int kTokens>
__device__ __forceinline__ void promote_block(float* d, float (&part)[kTokens / 2],
                                              const float* token_scales, float channel) {
  const auto* pairs = reinterpret_cast<const float2*>(token_scales) + threadIdx.x % 4;
  wgmma_results(part);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const float2 tokens = pairs[4 * j];
    const float2 scale = {tokens.x * channel, tokens.y * channel};
    d[4 * j] = fmaf(part[4 * j], scale.x, d[4 * j]);
    d[4 * j + 1] = fmaf(part[4 * j + 1], scale.y, d[4 * j + 1]);
    d[4 * j + 2] = fmaf(part[4 * j + 2], scale.x, d[4 * j + 2]);
    d[4 * j + 3] = fmaf(part[4 * j + 3], scale.y, d[4 * j + 3]);
  }
}

// A stage in shared memory, as the warpgroup reads it.
struct BlockStage {
  int index;
  uint64_t weight, tokens;    // descriptors
  const float* token_scales;  // of the tile's tokens
};

// Adds kBlocks blocks of k, of 64 channels x kTokens, from block k on, to d. The two halves of the
// tokens are multiplied in turn, so that the products of one run while those of the other are
// promoted. next() waits for a stage, release(index) releases one, and meanwhile(k) is called once
// per block.
template <int kTokens, int kBlocks, class Next, class Release, class Meanwhile>
__device__ __forceinline__ void multiply_some_blocks(float (&d)[kTokens / 2],
                                                     BlockScales& channel_scales, int k,
                                                     const Next& next, const Release& release,
                                                     const Meanwhile& meanwhile) {
  constexpr int kHalf = kTokens / 2;
  constexpr int kRowChunks = 8;  // 16-byte chunks of a row
  static_assert(kHalf % 8 == 0);
  float first[kHalf / 2], second[kHalf / 2];
  BlockStage last = {};
  float last_channel = 0;
  const auto promote_second = [&] {
    promote_block<kHalf>(d + kHalf / 2, second, last.token_scales + kHalf, last_channel);
    release(last.index);
  };
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const BlockStage stage = next();
    multiply_stage<kHalf>(first, stage.weight, stage.tokens, true);
    if (i != 0) {
      wgmma_wait<1>();
      promote_second();
    }
    const float channel = channel_scales(k + i);
    multiply_stage<kHalf>(second, stage.weight, stage.tokens + kRowChunks * kHalf, true);
    wgmma_wait<1>();
    promote_block<kHalf>(d, first, stage.token_scales, channel);
    meanwhile(k + i);
    last = stage;
    last_channel = channel;
  }
  wgmma_wait<0>();
  promote_second();
}

// Sets d to the sum of all blocks. The loop is unrolled because ptxas tracks which products run
// concurrently only through unrolled code; in a loop over single blocks it would serialise them.
template <int kTokens, class... Uses>
__device__ __forceinline__ void multiply_blocks(float (&d)[kTokens / 2], BlockScales channel_scales,
                                                int k_blocks, const Uses&... uses) {
  constexpr int kTogether = 4;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) d[i] = 0.0f;
  int k = 0;
  for (; k + kTogether <= k_blocks; k += kTogether) {
    multiply_some_blocks<kTokens, kTogether>(d, channel_scales, k, uses...);
  }
  for (; k < k_blocks; ++k) multiply_some_blocks<kTokens, 1>(d, channel_scales, k, uses...);
}

}  // namespace fusewire::cuda::sm90
