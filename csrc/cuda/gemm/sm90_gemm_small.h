// Matrix product for few tokens, which is bound by latency. A block computes kGroups * 64 channels
// x kTokens tokens of one slice of k; the blocks of a cluster have the slices (split k).
//
// Weights do not depend on earlier kernels: their loads start before wait_for_inputs(), so in a
// chain of programmatic dependent launches they run during the previous kernel. After the wait
// follow only the loads of the tokens, the products and one exchange: each thread sends its partial
// sums directly to the thread of the same index in the block that adds them, by st.async, whose
// bytes a barrier there counts. No synchronisation is needed at the end: once a block has received
// its sums, no other block writes to it.
#pragma once

#include "cuda/gemm/sm90_gemm_blocks.h"
#include "cuda/gemm/sm90_gemm_epilogue.h"
#include "cuda/gemm/sm90_gemm_small_output.h"
#include "cuda/gemm/sm90_gemm_small_shape.h"
#include "cuda/gemm/sm90_gemm_stage.h"
#include "cuda/gemm/sm90_int4_stage.h"
#include "cuda/sm90_tma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// Stores 16 bytes to block `owner` of the cluster at the address that `to` has in this block, and
// counts them at `barrier` there; in this block itself (`own`) they are not counted. There are no
// branches, which would cost more than the store. The asynchronous store is legal only if the
// launch has a cluster.
__device__ __forceinline__ void send(uint32_t to, uint32_t barrier, int owner, int own,
                                     const uint4& d) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      ".reg .u32 to, barrier;\n"
      "setp.eq.s32 p, %2, %3;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 barrier, %1, %2;\n"
      "@!p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%4, %5, %6, %7}, "
      "[barrier];\n"
      "@p st.shared.v4.b32 [%0], {%4, %5, %6, %7};\n"
      "}" ::"r"(to),
      "r"(barrier), "r"(owner), "r"(own), "r"(d.x), "r"(d.y), "r"(d.z), "r"(d.w)
      : "memory");
}

__device__ __forceinline__ uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ uint32_t bits_of(int32_t x) {
  return static_cast<uint32_t>(x);
}
template <class Sum>
__device__ __forceinline__ Sum from_bits(uint32_t bits) {
  if constexpr (std::is_same_v<Sum, float>) {
    return __uint_as_float(bits);
  } else {
    return static_cast<Sum>(bits);
  }
}

// Returns a thread's sums of 8 tokens: two tokens (d[i] and d[i + 1]) x two channels (d[2 * h]).
template <class Sum>
__device__ __forceinline__ uint4 bits_of(const Sum* d) {
  return {bits_of(d[0]), bits_of(d[1]), bits_of(d[2]), bits_of(d[3])};
}

// Grid: x = channel tiles * slices (the cluster), y = token tiles.
template <class T, class Element, class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    small_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ WeightFeed<Element> weight,
                 const __grid_constant__ SmallProblem p) {
  extern __shared__ __align__(1024) uint8_t base[];
  const int slices = p.slices, rank = blockIdx.x % slices;
  const int channel = blockIdx.x / slices * Shape::kChannels;
  const int token = blockIdx.y * Shape::kTokens;
  const int begin = p.k_blocks * rank / slices;
  const int blocks = p.k_blocks * (rank + 1) / slices - begin;
  const int own_columns = (Shape::kColumns - rank + slices - 1) / slices;
  const int warp = threadIdx.x / 32;
  uint8_t* sums = base + Shape::sums_offset(p.stages, slices);
  uint8_t* stage_scales = base + Shape::ring_bytes(p.stages, slices);
  uint64_t* full = reinterpret_cast<uint64_t*>(stage_scales + p.stages * Shape::kStageScaleBytes);
  uint64_t* empty = full + Shape::kMostStages;
  uint64_t* arrived = empty + Shape::kMostStages;
  let_next_start();

  const auto load_weight = [&](int i, int stage) {
    barrier_expect(&full[stage], Shape::kStageBytes + Shape::kStageScaleBytes);
    weight.template load<Shape::kChannels>(base + stage * Shape::kStageBytes, channel, begin + i,
                                           &full[stage]);
  };
  const auto load_tokens = [&](int i, int stage) {
    tma_load(base + stage * Shape::kStageBytes + Shape::kWeightBytes, &x_map, token,
             (begin + i) * kStageColumns<Element>, &full[stage]);
  };
  [[maybe_unused]] const auto load_token_scales = [&](int i, int stage) {
    bulk_load(stage_scales + stage * Shape::kStageScaleBytes,
              p.token_scales + (begin + i) * p.token_scale_stride + token, Shape::kStageScaleBytes,
              &full[stage]);
  };
  const int early = min(p.stages, blocks);
  if (threadIdx.x == Shape::kConsumers) {
    for (int s = 0; s < p.stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], Shape::kGroups * Shape::kReleases);
    }
    barrier_init(arrived, 1);
    barrier_init_fence();
    barrier_expect(arrived, own_columns * (slices - 1) * Shape::kSumBytes);
    map_prefetch(&x_map);
    for (int i = 0; i < early; ++i) load_weight(i, i);
  }
  __syncthreads();
  if (slices > 1) {  // waits until the other blocks have initialised their barriers
    cluster_arrive_relaxed();
    cluster_wait();
  }

  if (warp == Shape::kConsumers / 32) {
    if (elect_one()) {
      wait_for_inputs();
      for (int i = 0; i < early; ++i) load_tokens(i, i);
      int stage = 0, parity = 0;
      for (int i = early; i < blocks; ++i) {
        barrier_wait(&empty[stage], parity);
        load_weight(i, stage);
        load_tokens(i, stage);
        if constexpr (kInBlocks<Element>) load_token_scales(i, stage);
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
    }
    return;
  }

  const int group = warp / 4;
  SmallOutput<T, Shape, kGated<Element>> output(p, rank, token, channel);
  [[maybe_unused]] auto channel_scales = [&] {
    if constexpr (kInBlocks<Element>) {
      return BlockScales(p.channel_scales, p.n, p.k_blocks, channel, begin, blocks);
    } else {
      return NoScales{};
    }
  }();
  wait_for_inputs();
  if constexpr (kInBlocks<Element>) {  // while another warp issues the loads of the tokens
    if (threadIdx.x == 0) {
      for (int i = 0; i < early; ++i) load_token_scales(i, i);
    }
  }
  uint32_t add[Shape::kBatch][2];
  output.load(add);
  const auto scales = [&] {
    if constexpr (kScaled<Element>) {
      return RowScales<false>(p.token_scales + token, p.channel_scales,
                              channel + warp * 16 + threadIdx.x % 32 / 4, p.n);
    } else {
      return NoScales{};
    }
  }();
  // The scales of this block's next columns; those beyond its last are within kScalesBeyond.
  int column = rank;
  float2 token_scales[Shape::kBatch];
  const auto load_scales = [&] {
#pragma unroll
    for (int b = 0; b < Shape::kBatch; ++b) token_scales[b] = scales.tokens(column + b * slices);
    column += Shape::kBatch * slices;
  };
  load_scales();

  using Sum = SumOf<Element>;
  Sum d[Shape::kTokens / 2];
  // For e4m3 and int4: ptxas keeps no products in flight if sums are undefined on some paths.
  if constexpr (kPromoted<Element> || kInt4<Element>) {
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 2; ++i) d[i] = 0.0f;
  }
  [[maybe_unused]] const auto codes_place = [&] {
    if constexpr (kInt4<Element>) {
      return Int4Place<Element, Shape::kChannels>(warp);
    } else {
      return 0;
    }
  }();
  int stage = 0, parity = 0;
  for_each_stage<Element>(blocks, [&](int i, [[maybe_unused]] StageNumbers& numbers) {
    barrier_wait(&full[stage], parity);
    const uint8_t* at = base + stage * Shape::kStageBytes;
    const uint64_t tokens = k_major_descriptor(at + Shape::kWeightBytes);
    if constexpr (kPromoted<Element>) {
      float part[Shape::kTokens / 2];
      multiply_stage<Shape::kTokens>(part, k_major_descriptor(at + group * 8192), tokens, true);
      if constexpr (kInBlocks<Element>) {
        const uint8_t* token_scales = stage_scales + stage * Shape::kStageScaleBytes;
        const float channel_scale = channel_scales(i);
        wgmma_wait<0>();
        promote_block<Shape::kTokens>(d, part, reinterpret_cast<const float*>(token_scales),
                                      channel_scale);
      } else {
        promote<Shape::kTokens>(d, part);
      }
    } else if constexpr (kInt4<Element>) {
      numbers_of_codes(numbers, shared_address(at), codes_place);
      multiply_numbers<Shape::kTokens, T>(d, numbers, tokens, false);
      wgmma_wait<1>();
    } else {
      const uint64_t rows = k_major_descriptor(at + group * 8192);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma<Shape::kTokens, NumberOf<Element>>(d, rows + 2 * step, tokens + 2 * step,
                                                 (i | step) != 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    if (i != 0 && i + p.stages <= blocks && threadIdx.x % (128 / Shape::kReleases) == 0) {
      barrier_arrive(&empty[(stage == 0 ? p.stages : stage) - 1]);
    }
    if (++stage == p.stages) stage = 0, parity ^= 1;
  });
  wgmma_wait<0>();
  wgmma_results(d);

  uint32_t to = shared_address(sums) + (rank * Shape::kConsumers + threadIdx.x) * 16;
  if (slices > 1) {
    int owner = 0;
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
      send(to, shared_address(arrived), owner, rank, bits_of(&d[4 * j]));
      const bool around = ++owner == slices;
      owner = around ? 0 : owner;
      to += around ? slices * Shape::kSumBytes : 0;
    }
    barrier_wait(arrived, 0);
  } else {
    named_barrier_sync(1, Shape::kConsumers);  // until every warp has read the last stages
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
      *reinterpret_cast<uint4*>(sums + (j * Shape::kConsumers + threadIdx.x) * 16) =
          bits_of(&d[4 * j]);
    }
  }

  with_activation(p.activation, [&](const auto& activate) {
    const auto* from = reinterpret_cast<const uint4*>(sums) + threadIdx.x;
    for (int left = own_columns; left > 0; left -= Shape::kBatch) {
      Sum sum[Shape::kBatch][4] = {};
      const int per_column = slices * Shape::kConsumers;
#pragma unroll 2
      for (int s = 0; s < slices; ++s) {
#pragma unroll
        for (int b = 0; b < Shape::kBatch; ++b) {
          const uint4 more = from[s * Shape::kConsumers + (b < left ? b * per_column : 0)];
          sum[b][0] += from_bits<Sum>(more.x), sum[b][1] += from_bits<Sum>(more.y);
          sum[b][2] += from_bits<Sum>(more.z), sum[b][3] += from_bits<Sum>(more.w);
        }
      }
      from += Shape::kBatch * per_column;
      float scaled[Shape::kBatch][4];
#pragma unroll
      for (int b = 0; b < Shape::kBatch; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          scaled[b][2 * h] = scales(sum[b][2 * h], token_scales[b].x, h);
          scaled[b][2 * h + 1] = scales(sum[b][2 * h + 1], token_scales[b].y, h);
        }
      }
      output.store(scaled, add, activate);
      if (left > Shape::kBatch) {
        output.load(add);
        load_scales();
      }
    }
  });
}

}  // namespace fusewire::cuda::sm90
