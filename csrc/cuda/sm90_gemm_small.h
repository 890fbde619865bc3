// Matrix product for few tokens, where latency is the work. A block takes kGroups * 64 channels x
// kTokens tokens of one slice of k, and the blocks of a cluster hold the slices (split k).
//
// Weights do not depend on earlier kernels: their fetch starts before wait_for_inputs(), so in a
// chain of programmatic dependent launches it runs under the previous kernel. After the wait come
// only the tokens' fetch, the products and one hop: every thread sends its partial sums straight to
// the thread of its number in the block that adds them, by st.async, whose bytes a barrier there
// counts. Nobody waits at the end: a block that has got its sums is not written to any more.
#pragma once

#include "cuda/sm90_gemm_epilogue.h"
#include "cuda/sm90_tma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

struct SmallProblem {
  int m, n, k_blocks, stages, slices;
  const void* bias;      // or null
  const void* residual;  // or null
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  ActivationFormula activation;
};

template <int kGroups_, int kTokens_>
struct SmallShape {
  static constexpr int kGroups = kGroups_, kTokens = kTokens_, kChannels = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 32;
  static constexpr int kWeightBytes = kChannels * 128, kStageBytes = kWeightBytes + kTokens * 128;
  static constexpr int kMostStages = 16, kMostSlices = 8;
  // Tokens are dealt out to the slices' blocks in columns of 8: 4 sums a thread.
  static constexpr int kColumns = kTokens / 8;
  static constexpr int kSumBytes = kConsumers * 16, kResidualBytes = kConsumers * 8;
  static constexpr int kBarrierBytes = (2 * kMostStages + 1) * 8;

  // Of a block: for each of its columns the slices' sums and a residual.
  static int exchange_bytes(int slices) {
    return (kColumns + slices - 1) / slices * (slices * kSumBytes + kResidualBytes);
  }
  static int stages(int k_blocks, int slices) {
    constexpr int kRingBytes = 160 * 1024, kAllBytes = 227 * 1024;
    const int left = kAllBytes - kBarrierBytes - exchange_bytes(slices);
    const int fitting = (left < kRingBytes ? left : kRingBytes) / kStageBytes;
    const int most = fitting < kMostStages ? fitting : kMostStages;
    return k_blocks < most ? k_blocks : most;
  }
  static int shared_bytes(int stages, int slices) {
    return stages * kStageBytes + exchange_bytes(slices) + kBarrierBytes;
  }
};

// Stores in another block of the cluster and counts the bytes at its barrier. Only where the launch
// has named a cluster.
__device__ __forceinline__ void send(uint32_t to, uint32_t barrier, float a, float b, float c,
                                     float d) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

// Starts a copy of 4 bytes to shared memory, which the same thread may read after copies_wait().
__device__ __forceinline__ void copy_4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Two neighbouring channels of a token.
template <class T>
__device__ __forceinline__ const uint32_t* pair_at(const void* data, int64_t at) {
  return reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + at);
}

// A thread's place in the tile. Its fragment is two tokens of a column x two channels, 8 apart;
// with the lane of the next channel it becomes one token and two pairs of neighbouring channels.
struct SmallPlace {
  int token, channel;
  bool odd;
  __device__ __forceinline__ SmallPlace(int first_token, int first_channel) {
    const int lane = threadIdx.x % 32;
    odd = lane / 4 % 2;
    token = first_token + lane % 4 * 2 + odd;
    channel = first_channel + threadIdx.x / 32 * 16 + lane / 8 * 2;
  }
};

// The columns of this block: adds the slices and writes the results.
template <class T, class Shape, class Activate>
__device__ __forceinline__ void finish_columns(const SmallProblem& p, const SmallPlace& place,
                                               const float4* sums, const uint32_t* residuals,
                                               const float2 (&bias)[2], int rank, int columns,
                                               const Activate& activate) {
  const bool odd = place.odd;
  for (int j = rank; j < columns; j += p.slices) {
    float4 sum = *sums;
    sums += Shape::kConsumers;
    for (int s = 1; s < p.slices; ++s, sums += Shape::kConsumers) {
      const float4 add = *sums;
      sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
    }
    const float mine[2] = {odd ? sum.y : sum.x, odd ? sum.w : sum.z};
    const float theirs[2] = {odd ? sum.x : sum.y, odd ? sum.z : sum.w};
    const int token = place.token + 8 * j;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float other = __shfl_xor_sync(0xffffffffu, theirs[h], 4);
      float low = activate((odd ? other : mine[h]) + bias[h].x);
      float high = activate((odd ? mine[h] : other) + bias[h].y);
      if (token >= p.m || place.channel + 8 * h >= p.n) continue;
      if (p.residual != nullptr) {
        const float2 add = to_float2(residuals[h * Shape::kConsumers], T{});
        low += add.x, high += add.y;
      }
      const int64_t at = token * p.out_stride + place.channel + 8 * h;
      *reinterpret_cast<uint32_t*>(static_cast<T*>(p.out) + at) = to_pair(low, high, T{});
    }
    residuals += 2 * Shape::kConsumers;
  }
}

// Grid: x = channel tiles * slices (the cluster), y = token tiles.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    small_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap weight_map,
                 const __grid_constant__ SmallProblem p) {
  extern __shared__ __align__(1024) uint8_t base[];
  const int slices = p.slices, rank = blockIdx.x % slices;
  const int channel = blockIdx.x / slices * Shape::kChannels;
  const int token = blockIdx.y * Shape::kTokens;
  const int begin = p.k_blocks * rank / slices;
  const int blocks = p.k_blocks * (rank + 1) / slices - begin;
  const int columns = min(Shape::kColumns, (p.m - token + 7) / 8);
  const int own_columns = (columns - rank + slices - 1) / slices;
  const int most_columns = (Shape::kColumns + slices - 1) / slices;
  const int warp = threadIdx.x / 32;
  uint8_t* sums = base + p.stages * Shape::kStageBytes;
  uint8_t* residuals = sums + most_columns * slices * Shape::kSumBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(residuals + most_columns * Shape::kResidualBytes);
  uint64_t* empty = full + Shape::kMostStages;
  uint64_t* arrived = empty + Shape::kMostStages;
  let_next_start();

  const auto load_weight = [&](int i, int stage) {
    barrier_expect(&full[stage], Shape::kStageBytes);
    tma_load(base + stage * Shape::kStageBytes, &weight_map, channel, (begin + i) * 64,
             &full[stage]);
  };
  const auto load_tokens = [&](int i, int stage) {
    tma_load(base + stage * Shape::kStageBytes + Shape::kWeightBytes, &x_map, token,
             (begin + i) * 64, &full[stage]);
  };
  const int early = min(p.stages, blocks);
  if (threadIdx.x == Shape::kConsumers) {
    for (int s = 0; s < p.stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], Shape::kGroups);
    }
    barrier_init(arrived, 1);
    barrier_init_fence();
    barrier_expect(arrived, own_columns * (slices - 1) * Shape::kSumBytes);
    map_prefetch(&x_map);
    for (int i = 0; i < early; ++i) load_weight(i, i);
  }
  __syncthreads();
  if (slices > 1) cluster_arrive_relaxed();

  if (warp == Shape::kConsumers / 32) {
    if (elect_one()) {
      wait_for_inputs();
      for (int i = 0; i < early; ++i) load_tokens(i, i);
      int stage = 0, parity = 0;
      for (int i = early; i < blocks; ++i) {
        barrier_wait(&empty[stage], parity);
        load_weight(i, stage);
        load_tokens(i, stage);
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
    }
    __syncwarp();
    if (slices > 1) cluster_wait();
    return;
  }

  const int group = warp / 4;
  const SmallPlace place(token, channel);
  float2 bias[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (p.bias == nullptr || place.channel + 8 * h >= p.n) continue;
    bias[h] = to_float2(*pair_at<T>(p.bias, place.channel + 8 * h), T{});
  }
  const auto* own_sums = reinterpret_cast<const float4*>(sums) + threadIdx.x;
  auto* own_residuals = reinterpret_cast<uint32_t*>(residuals) + threadIdx.x;

  wait_for_inputs();
  if (p.residual != nullptr) {
    uint32_t* to = own_residuals;
    for (int j = rank; j < columns; j += slices) {
#pragma unroll
      for (int h = 0; h < 2; ++h, to += Shape::kConsumers) {
        if (place.token + 8 * j >= p.m || place.channel + 8 * h >= p.n) continue;
        copy_4(to, pair_at<T>(p.residual,
                              (place.token + 8 * j) * p.residual_stride + place.channel + 8 * h));
      }
    }
  }

  float d[Shape::kTokens / 2];
  int stage = 0, parity = 0;
  for (int i = 0; i < blocks; ++i) {
    barrier_wait(&full[stage], parity);
    const uint8_t* at = base + stage * Shape::kStageBytes;
    const uint64_t weight = k_major_descriptor(at + group * 8192);
    const uint64_t tokens = k_major_descriptor(at + Shape::kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<Shape::kTokens, T>(d, weight + 2 * step, tokens + 2 * step, (i | step) != 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i != 0 && threadIdx.x % 128 == 0) {
      barrier_arrive(&empty[(stage == 0 ? p.stages : stage) - 1]);
    }
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  wgmma_results(d);

  if (slices > 1) cluster_wait();  // the other blocks have begun and made their barriers
  int owner = 0;
  uint32_t at = (rank * Shape::kConsumers + threadIdx.x) * 16;
#pragma unroll
  for (int j = 0; j < Shape::kColumns; ++j) {
    if (j >= columns) break;
    if (owner == rank) {
      *reinterpret_cast<float4*>(sums + at) =
          make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    } else {
      send(cluster_address(sums, owner) + at, cluster_address(arrived, owner), d[4 * j],
           d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    }
    if (++owner == slices) owner = 0, at += slices * Shape::kSumBytes;
  }
  copies_wait();
  if (slices > 1) barrier_wait(arrived, 0);
  with_activation(p.activation, [&](const auto& activate) {
    finish_columns<T, Shape>(p, place, own_sums, own_residuals, bias, rank, columns, activate);
  });
}

}  // namespace fusewire::cuda::sm90
