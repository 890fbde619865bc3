// Matrix product for many tokens: persistent blocks of a producer warp, which feeds a ring of
// shared-memory stages by TMA, and two consumer warpgroups. A tile is 128 channels x kTokens
// tokens.
//
//  - Cooperating warpgroups each take 64 channels of one tile: the largest tiles fit.
//  - Ping-pong warpgroups each take whole tiles, in turn: one's epilogue (an erf costs a quarter of
//    a k = 768 main loop) runs while the other keeps the tensor cores busy.
//
// Two blocks of a cluster take neighbouring channels of the same tokens: each fetches half of the
// token tile and multicasts it to both, since L2 cannot feed 132 tensor cores by itself.
#pragma once

#include "cuda/sm90_gemm_epilogue.h"
#include "cuda/sm90_tma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

struct LargeProblem {
  int n, k_blocks;                 // k in blocks of 64
  int token_tiles, channel_tiles;  // channel tiles of one cluster: 128 channels a block
  const void* bias;                // or null
  bool has_residual;
  ActivationFormula activation;
};

template <int kTokens_, bool kPingPong_, int kCluster_>
struct LargeShape {
  static constexpr int kTokens = kTokens_, kCluster = kCluster_;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kBlocks = kPingPong ? 2 : 1;  // of 64 channels for one warpgroup
  static constexpr int kThreads = 3 * 128;
  // What one block of the cluster fetches of the token tile: shares may overlap by 8 tokens.
  static constexpr int kShare = kCluster == 1 ? kTokens : (kTokens / 8 + 1) / 2 * 8;
  static constexpr int kWeightBytes = 128 * 128, kTokenBytes = kTokens * 128;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kArrivingBytes = kWeightBytes + kCluster * kShare * 128;
  static constexpr int kOutBytes = kTokens * 128;  // 64 channels
  static constexpr int kBarrierBytes = 256;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kFitting = (kMostBytes - kBarrierBytes - 2 * kOutBytes) / kStageBytes;
  static constexpr int kStages = kFitting < 8 ? kFitting : 8;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kOutBytes + kBarrierBytes;
};

// Tiles of a cluster in turn. Eight token tiles go together through all channels: what runs at one
// time touches few distinct rows of either matrix, and a pass over the weight serves eight.
struct TileOrder {
  static constexpr int kGroup = 8;
  int tokens, channels;
  __device__ __forceinline__ TileOrder(const LargeProblem& p, int index) {
    const int group = index / (kGroup * p.channel_tiles);
    const int within = index - group * kGroup * p.channel_tiles;
    const int width = min(kGroup, p.token_tiles - group * kGroup);
    channels = within / width;
    tokens = group * kGroup + within - channels * width;
  }
};

template <class Shape>
struct LargeShared {
  uint8_t* stages;
  uint8_t* out;
  uint64_t *full, *empty, *residual;
  __device__ __forceinline__ explicit LargeShared(uint8_t* base)
      : stages(base),
        out(base + Shape::kStages * Shape::kStageBytes),
        full(reinterpret_cast<uint64_t*>(out + 2 * Shape::kOutBytes)),
        empty(full + Shape::kStages),
        residual(empty + Shape::kStages) {}
};

// One thread of the producer warp.
template <class Shape>
__device__ __forceinline__ void produce(const LargeShared<Shape>& shared, const LargeProblem& p,
                                        const CUtensorMap* x_map, const CUtensorMap* weight_map,
                                        int cluster, int clusters, int rank) {
  constexpr int kStages = Shape::kStages;
  const int share_begin = rank == 0 ? 0 : Shape::kTokens - Shape::kShare;
  const int tiles = p.token_tiles * p.channel_tiles;
  const auto load_weight = [&](const TileOrder& tile, int block, int stage) {
    barrier_expect(&shared.full[stage], Shape::kArrivingBytes);
    tma_load(shared.stages + stage * Shape::kStageBytes, weight_map,
             (tile.channels * Shape::kCluster + rank) * 128, block * 64, &shared.full[stage]);
  };
  const auto load_tokens = [&](const TileOrder& tile, int block, int stage) {
    uint8_t* to = shared.stages + stage * Shape::kStageBytes + Shape::kWeightBytes;
    const int row = tile.tokens * Shape::kTokens + share_begin;
    if constexpr (Shape::kCluster == 1) {
      tma_load(to, x_map, row, block * 64, &shared.full[stage]);
    } else {
      tma_load_multicast(to + share_begin * 128, x_map, row, block * 64, &shared.full[stage], 3);
    }
  };
  // The first weights do not wait for earlier kernels.
  const int early = min(kStages, p.k_blocks);
  if (cluster < tiles) {
    const TileOrder first(p, cluster);
    for (int block = 0; block < early; ++block) load_weight(first, block, block);
  }
  wait_for_inputs();
  int stage = 0, parity = 1;
  for (int index = cluster; index < tiles; index += clusters) {
    const TileOrder tile(p, index);
    for (int block = 0; block < p.k_blocks; ++block) {
      if (index != cluster || block >= early) {
        barrier_wait(&shared.empty[stage], parity);
        load_weight(tile, block, stage);
      }
      load_tokens(tile, block, stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// A consumer warpgroup; `group` is 0 or 1.
template <class T, class Shape>
__device__ __forceinline__ void consume(const LargeShared<Shape>& shared, const LargeProblem& p,
                                        const CUtensorMap* out_map, const CUtensorMap* residual_map,
                                        int cluster, int clusters, int rank, int group) {
  constexpr int kStages = Shape::kStages, kBlocks = Shape::kBlocks, kTokens = Shape::kTokens;
  constexpr int kTurns = Shape::kPingPong ? 2 : 1;
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int tiles = p.token_tiles * p.channel_tiles;
  const int first_channel = Shape::kPingPong ? 0 : 64 * group;
  uint8_t* out = shared.out + group * Shape::kOutBytes;
  const T* bias = static_cast<const T*>(p.bias);
  int residual_parity = 0;
  // The ring's position where this warpgroup's next tile begins, and how many positions follow it.
  const int position = Shape::kPingPong ? group * p.k_blocks : 0;
  int stage = position % kStages, parity = position / kStages % 2;
  int left = (tiles - cluster + clusters - 1) / clusters * p.k_blocks - position;
  const auto release = [&](int s) {
    // Arrivals that no load waits for are left out: the other block may have ended.
    if (left-- <= kStages) return;
    if constexpr (Shape::kCluster == 1) {
      if (thread == 0) barrier_arrive(&shared.empty[s]);
    } else {
      if (thread < 2) barrier_arrive_at(&shared.empty[s], thread);
    }
  };
  // A warpgroup begins its main loop when the other has seen all of its own stages filled: barriers
  // tell phases by parity, so nobody may wait for one phase further on than the next.
  const auto let_other_begin = [&] { named_barrier_arrive(3 + (group ^ 1), 256); };
  if (Shape::kPingPong && group == 1) let_other_begin();
  wait_for_inputs();

  for (int index = cluster + (Shape::kPingPong ? group * clusters : 0); index < tiles;
       index += kTurns * clusters) {
    const TileOrder tile(p, index);
    const int token = tile.tokens * kTokens;
    const int channel = (tile.channels * Shape::kCluster + rank) * 128 + first_channel;
    const auto load_residual = [&](int block) {  // by thread 0
      tma_store_wait<0>();
      barrier_expect(&shared.residual[group], Shape::kOutBytes);
      tma_load(out, residual_map, token, channel + 64 * block, &shared.residual[group]);
    };
    const int residual_at = min(2, p.k_blocks - 1);  // by then the last tile's store has drained
    float biases[kBlocks][2];
#pragma unroll
    for (int b = 0; b < 2 * kBlocks; ++b) {
      const int c = channel + 64 * (b / 2) + 16 * warp + lane / 4 + 8 * (b % 2);
      biases[b / 2][b % 2] = bias != nullptr && c < p.n ? to_float(bias[c]) : 0.0f;
    }

    if constexpr (Shape::kPingPong) named_barrier_sync(3 + group, 256);
    float d[kBlocks][kTokens / 2];
    int previous = 0;
    for (int k = 0; k < p.k_blocks; ++k) {
      barrier_wait(&shared.full[stage], parity);
      const uint8_t* at = shared.stages + stage * Shape::kStageBytes;
      const uint64_t weight = k_major_descriptor(at + first_channel * 128);
      const uint64_t tokens = k_major_descriptor(at + Shape::kWeightBytes);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          wgmma<kTokens, T>(d[b], weight + 512 * b + 2 * step, tokens + 2 * step, (k | step) != 0);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (k != 0) release(previous);
      if (k == residual_at && p.has_residual && thread == 0) load_residual(0);
      previous = stage;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    if (Shape::kPingPong && index + clusters < tiles) let_other_begin();
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) wgmma_results(d[b]);
    release(previous);

    const auto finish = [&](auto index) {
      constexpr int kBlock = decltype(index)::value;
      if (p.has_residual) {
        barrier_wait(&shared.residual[group], residual_parity);
        residual_parity ^= 1;
      } else {
        if (thread == 0) tma_store_wait<0>();
        named_barrier_sync(1 + group, 128);
      }
      with_activation(p.activation, [&](const auto& activate) {
        if (p.has_residual) {
          finish_tile<T, kTokens, true>(d[kBlock], biases[kBlock], out, activate);
        } else {
          finish_tile<T, kTokens, false>(d[kBlock], biases[kBlock], out, activate);
        }
      });
      fence_async_shared();
      named_barrier_sync(1 + group, 128);
      if (thread == 0) {
        tma_store(out_map, token, channel + 64 * kBlock, out);
        tma_store_commit();
        if (p.has_residual && kBlock + 1 < kBlocks) load_residual(kBlock + 1);
      }
    };
    finish(std::integral_constant<int, 0>{});
    if constexpr (kBlocks == 2) finish(std::integral_constant<int, 1>{});
    if constexpr (Shape::kPingPong) {  // the other warpgroup's tile lies between
      left -= p.k_blocks;
      stage += p.k_blocks;
      parity ^= stage / kStages % 2;
      stage %= kStages;
    }
  }
  if (thread == 0) tma_store_wait<0>();
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    large_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap weight_map,
                 const __grid_constant__ CUtensorMap out_map,
                 const __grid_constant__ CUtensorMap residual_map,
                 const __grid_constant__ LargeProblem p) {
  extern __shared__ __align__(1024) uint8_t base[];
  const LargeShared<Shape> shared(base);
  const int rank = Shape::kCluster == 1 ? 0 : cluster_rank();
  const int cluster = blockIdx.x / Shape::kCluster, clusters = gridDim.x / Shape::kCluster;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], Shape::kCluster * (Shape::kPingPong ? 1 : 2));
    }
    barrier_init(&shared.residual[0], 1);
    barrier_init(&shared.residual[1], 1);
    barrier_init_fence();
    map_prefetch(&x_map);
    map_prefetch(&weight_map);
    map_prefetch(&out_map);
  }
  let_next_start();
  if constexpr (Shape::kCluster == 1) {
    __syncthreads();
  } else {
    cluster_arrive_relaxed();
    cluster_wait();
  }

  const int group = threadIdx.x / 128;
  if (group == 0) {
    registers_shrink_to<24>();
    if (threadIdx.x == 0) {
      produce<Shape>(shared, p, &x_map, &weight_map, cluster, clusters, rank);
    }
  } else {
    registers_grow_to<240>();
    consume<T, Shape>(shared, p, &out_map, &residual_map, cluster, clusters, rank, group - 1);
  }
}

}  // namespace fusewire::cuda::sm90
