// The products of one pipeline stage with int4 weights. wgmma takes the weight from registers: a
// warp dequantises its tile while the products of earlier steps run.
#pragma once

#include "cuda/gemm/sm90_weight_feed.h"
#include "cuda/mma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// The offsets of a thread's codes and words in a stage.
template <class Element, int kChannels>
struct Int4Place {
  static constexpr int kTiles = kChannels / nibbles::kTileChannels;
  uint32_t codes, words;

  // `warp`: the warp's index in the block; each has a tile of channels.
  __device__ __forceinline__ explicit Int4Place(int warp) {
    const int lane = threadIdx.x % 32;
    codes = warp * nibbles::kUnitBytes + lane * 16;
    words =
        kTiles * nibbles::kUnitBytes + warp * WeightFeed<Element>::kTileWordBytes + lane / 4 * 8;
  }
};

// A warp's dequantised tile for the four steps of a stage.
using StageNumbers = uint32_t[nibbles::kSteps][4];

template <class T, bool kFine, int kChannels>
__device__ __forceinline__ void numbers_of_codes(
    StageNumbers& a, uint32_t stage, const Int4Place<Int4<T, kFine>, kChannels>& place) {
  const uint4 codes = load_shared_16(stage + place.codes);
  const uint32_t steps[nibbles::kSteps] = {codes.x, codes.y, codes.z, codes.w};
  const auto group_at = [&](int i) {
    return nibbles::GroupNumbers<T>(
        load_shared_8(stage + place.words + i * nibbles::kTileChannels * 4));
  };
  const nibbles::GroupNumbers<T> first = group_at(0), second = group_at(kFine);
#pragma unroll
  for (int s = 0; s < nibbles::kSteps; ++s) {
    (kFine && s >= nibbles::kSteps / 2 ? second : first).fragment(steps[s], a[s]);
  }
}

// Starts the products of 64 channels of a stage with its tokens and adds them to d, or overwrites d
// if the stage is the `first`.
template <int kTokens, class T>
__device__ __forceinline__ void multiply_numbers(float (&d)[kTokens / 2], const StageNumbers& a,
                                                 uint64_t tokens, bool first) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < nibbles::kSteps; ++s) {
    wgmma<kTokens, T>(d, a[s], tokens + 2 * s, !first || s != 0);
  }
  wgmma_commit();
}

// Calls use(i, numbers) for `count` stages. For int4 `numbers` alternates between two sets of
// registers: the products of one stage read one set while the other is filled. Otherwise it is
// unused.
template <class Element, class Use>
__device__ __forceinline__ void for_each_stage(int count, const Use& use) {
  StageNumbers numbers[2];
  if constexpr (kInt4<Element>) {
    for (int i = 0; i < count; i += 2) {
      use(i, numbers[0]);
      if (i + 1 == count) break;
      use(i + 1, numbers[1]);
    }
  } else {
    for (int i = 0; i < count; ++i) use(i, numbers[0]);
  }
}

}  // namespace fusewire::cuda::sm90
