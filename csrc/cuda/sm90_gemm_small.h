// Matrix product for few tokens, where reading the weight is the work: a block takes kGroups * 64
// channels x kTokens tokens of one slice of k, and the blocks of a cluster, which hold the slices
// (split k), add their partial tiles through each other's shared memory.
//
// Weights do not depend on earlier kernels: their fetch starts before wait_for_inputs(), so in a
// chain of programmatic dependent launches it runs under the previous kernel's tail.
#pragma once

#include "cuda/sm90_gemm_epilogue.h"
#include "cuda/sm90_tma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

struct SmallProblem {
  int m, n, k_blocks, stages;
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
  static constexpr int kMostStages = 16;
  // The partial tile [tokens][channels] in fp32 takes the ring's place; a pitch of 4 modulo 16
  // words spreads a fragment's 4 x 8 elements over all banks.
  static constexpr int kPitch = kChannels + 4;
  static constexpr int kTileBytes = kTokens * kPitch * 4;
  static constexpr int kBarrierBytes = 2 * kMostStages * 8;
  // Two blocks to a multiprocessor, so that the next kernel's can begin beside this one's.
  static constexpr int kRingBytes = 112 * 1024 - kBarrierBytes;
  static int stages(int k_blocks) {
    constexpr int kFitting = kRingBytes / kStageBytes;
    const int most = kFitting < kMostStages ? kFitting : kMostStages;
    return k_blocks < most ? k_blocks : most;
  }
  static int shared_bytes(int stages) {
    const int ring = stages * kStageBytes;
    return kBarrierBytes + (ring > kTileBytes ? ring : kTileBytes) + 1024;
  }
};

__device__ __forceinline__ float4 load_cluster(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// This block's share of the cluster's tile: adds the slices, 8 channels of a token a thread.
template <class T, class Shape, class Activate>
__device__ __forceinline__ void add_slices(const SmallProblem& p, const float* partial, int rank,
                                           int slices, int channel, int token,
                                           const Activate& activate) {
  constexpr int kVectors = Shape::kTokens * Shape::kChannels / 8;
  const int share = (kVectors + slices - 1) / slices;
  const int end = min(kVectors, (rank + 1) * share);
  for (int v = rank * share + threadIdx.x; v < end; v += Shape::kConsumers) {
    const int t = v / (Shape::kChannels / 8), c = v % (Shape::kChannels / 8) * 8;
    if (token + t >= p.m || channel + c >= p.n) continue;
    Vector<T> add{}, bias{};
    if (p.bias != nullptr) bias = Vector<T>::load(static_cast<const T*>(p.bias) + channel + c);
    if (p.residual != nullptr) {
      add = Vector<T>::load(static_cast<const T*>(p.residual) + (token + t) * p.residual_stride +
                            channel + c);
    }
    const float* own = partial + t * Shape::kPitch + c;
    float sum[8] = {};
    for (int s = 0; s < slices; ++s) {
      const uint32_t from = cluster_address(own, s);
      const float4 low = load_cluster(from), high = load_cluster(from + 16);
      sum[0] += low.x, sum[1] += low.y, sum[2] += low.z, sum[3] += low.w;
      sum[4] += high.x, sum[5] += high.y, sum[6] += high.z, sum[7] += high.w;
    }
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = activate(sum[i] + to_float(bias.at[i]));
      out.at[i] = from_float<T>(x + (p.residual != nullptr ? to_float(add.at[i]) : 0.0f));
    }
    out.store(static_cast<T*>(p.out) + (token + t) * p.out_stride + channel + c);
  }
}

// Grid: x = channel tiles * slices (the cluster), y = token tiles.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    small_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap weight_map,
                 const __grid_constant__ SmallProblem p, int slices) {
  extern __shared__ __align__(1024) uint8_t base[];
  uint8_t* ring = base;
  const int tile_bytes = max(p.stages * Shape::kStageBytes, Shape::kTileBytes);
  uint64_t* full = reinterpret_cast<uint64_t*>(base + tile_bytes);
  uint64_t* empty = full + Shape::kMostStages;
  const int rank = blockIdx.x % slices, channel = blockIdx.x / slices * Shape::kChannels;
  const int token = blockIdx.y * Shape::kTokens;
  const int begin = p.k_blocks * rank / slices, end = p.k_blocks * (rank + 1) / slices;
  const int warp = threadIdx.x / 32;
  let_next_start();

  const auto load_weight = [&](int i) {
    const int stage = i % p.stages;
    barrier_expect(&full[stage], Shape::kStageBytes);
    tma_load(ring + stage * Shape::kStageBytes, &weight_map, channel, (begin + i) * 64,
             &full[stage]);
  };
  const auto load_tokens = [&](int i) {
    const int stage = i % p.stages;
    tma_load(ring + stage * Shape::kStageBytes + Shape::kWeightBytes, &x_map, token,
             (begin + i) * 64, &full[stage]);
  };
  const int early = min(p.stages, end - begin);
  if (threadIdx.x == Shape::kConsumers) {
    for (int s = 0; s < p.stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], Shape::kGroups);
    }
    barrier_init_fence();
    for (int i = 0; i < early; ++i) load_weight(i);
  }
  __syncthreads();

  if (warp == Shape::kConsumers / 32) {
    if (elect_one()) {
      wait_for_inputs();
      for (int i = 0; i < early; ++i) load_tokens(i);
      for (int i = early; i < end - begin; ++i) {
        barrier_wait(&empty[i % p.stages], i / p.stages % 2 ^ 1);
        load_weight(i);
        load_tokens(i);
      }
    }
    __syncwarp();
    if (slices > 1) {
      cluster_sync();
      cluster_arrive_relaxed();
      cluster_wait();
    }
    return;
  }

  const int group = warp / 4, lane = threadIdx.x % 32;
  float d[Shape::kTokens / 2];
  for (int i = 0; i < end - begin; ++i) {
    const int stage = i % p.stages;
    barrier_wait(&full[stage], i / p.stages % 2);
    const uint8_t* at = ring + stage * Shape::kStageBytes;
    const uint64_t weight = k_major_descriptor(at + group * 8192);
    const uint64_t tokens = k_major_descriptor(at + Shape::kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<Shape::kTokens, T>(d, weight + 2 * step, tokens + 2 * step, (i | step) != 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i != 0 && threadIdx.x % 128 == 0) barrier_arrive(&empty[(i - 1) % p.stages]);
  }
  wgmma_wait<0>();
  wgmma_results(d);

  // The whole block has read the ring before the partial tile takes its place.
  named_barrier_sync(1, Shape::kConsumers);
  float* partial = reinterpret_cast<float*>(ring);
  const int row = group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < Shape::kTokens / 2; ++i) {
    const int t = i / 4 * 8 + lane % 4 * 2 + i % 2;
    partial[t * Shape::kPitch + row + i / 2 % 2 * 8] = d[i];
  }
  wait_for_inputs();
  if (slices > 1) {
    cluster_sync();
  } else {
    named_barrier_sync(1, Shape::kConsumers);
  }
  with_activation(p.activation, [&](const auto& activate) {
    add_slices<T, Shape>(p, partial, rank, slices, channel, token, activate);
  });
  if (slices > 1) {  // nobody leaves while its slice is being read
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

}  // namespace fusewire::cuda::sm90
