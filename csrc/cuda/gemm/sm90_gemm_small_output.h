// The output of a thread of a matrix product for few tokens (sm90_gemm_small.h): bias, residual and
// stores.
#pragma once

#include "cuda/gemm/sm90_gemm_small_shape.h"

namespace fusewire::cuda::sm90 {

// A thread's fragment of a column is two tokens x two channels, 8 apart; an exchange with the lane
// of the next channel makes it one token and two pairs of neighbouring channels. kGated: the pairs
// are channels of a and of b, from which a gated unit makes one pair of outputs.
template <class T, class Shape, bool kGated>
struct SmallOutput {
  static constexpr int kPairs = kGated ? 1 : 2;  // that are stored
  int token;                                     // of the next column to be stored
  int step;                                      // from one of this block's columns to the next
  int last;                                      // end of the tokens
  bool odd, inside[2], alone[2];                 // alone: there is no next channel
  float2 bias[2] = {};
  const T* residual;  // null: none
  T* out;
  int64_t residual_step, out_step;

  __device__ __forceinline__ SmallOutput(const SmallProblem& p, int rank, int first_token,
                                         int first_channel) {
    const int lane = threadIdx.x % 32;
    odd = lane / 4 % 2;
    token = first_token + rank * 8 + lane % 4 * 2 + odd;
    step = p.slices * 8;
    last = min(p.m, first_token + Shape::kTokens);
    const int warp = threadIdx.x / 32, in_eight = lane / 8 * 2;
    const int channel =
        (kGated ? first_channel / 2 + warp * 8 : first_channel + warp * 16) + in_eight;
    const int apart = kGated ? p.n / 2 : 8;  // rows of the weight between the pairs
    const int end = kGated ? p.n / 2 : p.n;  // of the output's channels
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = kGated ? channel : channel + 8 * h;
      inside[h] = place < end;
      alone[h] = place == end - 1;
      if (p.bias == nullptr || !inside[h]) continue;
      bias[h] = unpack<T>(*pair(static_cast<const T*>(p.bias) + channel + apart * h));
    }
    residual = p.residual == nullptr
                   ? nullptr
                   : static_cast<const T*>(p.residual) + token * p.residual_stride + channel;
    residual_step = step * p.residual_stride;
    out = static_cast<T*>(p.out) + token * p.out_stride + channel;
    out_step = step * p.out_stride;
  }
  __device__ __forceinline__ static const uint32_t* pair(const T* at) {
    return reinterpret_cast<const uint32_t*>(at);
  }

  // Loads the residual of the next kBatch columns.
  __device__ __forceinline__ void load(uint32_t (&add)[Shape::kBatch][2]) {
#pragma unroll
    for (int b = 0; b < Shape::kBatch; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        add[b][h] = 0;
        if (residual != nullptr && token + b * step < last && inside[h]) {
          add[b][h] = *pair(residual + b * residual_step + 8 * h);
        }
      }
    }
    if (residual != nullptr) residual += Shape::kBatch * residual_step;
  }

  template <class Activate>
  __device__ __forceinline__ void store(const float (&sums)[Shape::kBatch][4],
                                        const uint32_t (&add)[Shape::kBatch][2],
                                        const Activate& activate) {
#pragma unroll
    for (int b = 0; b < Shape::kBatch; ++b) {
      const float (&sum)[4] = sums[b];
      const float mine[2] = {odd ? sum[1] : sum[0], odd ? sum[3] : sum[2]};
      const float theirs[2] = {odd ? sum[0] : sum[1], odd ? sum[2] : sum[3]};
      float2 pairs[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float other = __shfl_xor_sync(0xffffffffu, theirs[h], 4);
        pairs[h] = {(odd ? other : mine[h]) + bias[h].x, (odd ? mine[h] : other) + bias[h].y};
      }
#pragma unroll
      for (int h = 0; h < kPairs; ++h) {
        const float2 more = kGated ? float2{} : unpack<T>(add[b][h]);
        float2 result = {activate(pairs[h].x) + more.x, activate(pairs[h].y) + more.y};
        if (kGated) result = {result.x * pairs[1].x, result.y * pairs[1].y};
        T* to = out + b * out_step + 8 * h;
        if (token + b * step >= last || !inside[h]) continue;
        if (alone[h]) {
          *to = from_float<T>(result.x);
        } else {
          *reinterpret_cast<uint32_t*>(to) = pack<T>(result.x, result.y);
        }
      }
    }
    token += Shape::kBatch * step;
    out += Shape::kBatch * out_step;
  }
};

}  // namespace fusewire::cuda::sm90
