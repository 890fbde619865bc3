// Products of many tokens: their arguments and shapes, the order of tiles, and the producer.
#pragma once

#include <utility>

#include "cuda/gemm/sm90_gemm_epilogue.h"
#include "cuda/gemm/sm90_gemm_stage.h"
#include "cuda/gemm/sm90_weight_feed.h"
#include "cuda/launch.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

struct LargeProblem {
  int n, k_blocks;                             // k in stages (kStageColumns)
  int token_tiles, channel_tiles;              // channel tiles of a cluster: 128 channels per block
  const void* bias;                            // null: none
  const float *token_scales, *channel_scales;  // of 8-bit operands
  int64_t token_scale_stride;                  // from one block of k to the next
  bool has_residual;
  ActivationFormula activation;
};

// kChannelBytes: bytes of a weight's channel in a stage. kInBlocks_: the scales of tokens are
// loaded with each stage. kOutputs: results of a token per 64 channels.
template <int kTokens_, bool kPingPong_, int kChannelBytes = 128, bool kInBlocks_ = false,
          int kOutputs = 64>
struct LargeShape {
  static constexpr int kTokens = kTokens_, kCluster = 2;  // blocks
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kBlocks = kPingPong ? 2 : 1;  // of 64 channels, per warpgroup
  static constexpr int kThreads = 3 * 128;
  // The tokens of a tile that one block of the cluster fetches; the shares may overlap by 8 tokens.
  static constexpr int kShare = (kTokens / 8 + 1) / 2 * 8;
  static constexpr int kWeightBytes = 128 * kChannelBytes, kTokenBytes = kTokens * 128;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kTokenScaleBytes = kTokens * 4;
  static constexpr int kStageScaleBytes = kInBlocks_ ? kTokenScaleBytes : 0;
  static constexpr int kArrivingBytes = kWeightBytes + kCluster * kShare * 128 + kStageScaleBytes;
  // A warpgroup stores its results in pieces of kOutputs x kPiece tokens, through kBuffers
  // buffers in turn. Small pieces leave room for a fourth stage beside 232 tokens (with three
  // stages the tensor cores wait for memory); where the epilogue is hidden, few pieces are better.
  // The last piece of a tile may be smaller.
  static constexpr int kPieces = kPingPong ? 1 : 3, kBuffers = kPingPong ? 1 : 2;
  static constexpr int kPiece = (kTokens / 8 + kPieces - 1) / kPieces * 8;
  static constexpr int kLastPiece = kTokens - (kPieces - 1) * kPiece;
  static constexpr int kParts = kBlocks * kPieces;
  static constexpr int piece_end(int piece) {
    return piece == kPieces - 1 ? kTokens : (piece + 1) * kPiece;
  }
  static constexpr int kPieceBytes = kPiece * kOutputs * 2, kOutBytes = kBuffers * kPieceBytes;
  static constexpr int kBarrierBytes = 256;
  // Arrivals of a warpgroup at a stage's empty barrier: scales are read by each warp.
  static constexpr int kReleases = kInBlocks_ ? 4 : 1;
  // Scales per token are kept for each warpgroup's tile, scales of blocks in the stages.
  static constexpr int kScaleBytes = kInBlocks_ ? 0 : 2 * kTokenScaleBytes;
  static constexpr int kOtherBytes = 2 * kOutBytes + kBarrierBytes + kScaleBytes;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kFitting = (kMostBytes - kOtherBytes) / (kStageBytes + kStageScaleBytes);
  static constexpr int kStages = kFitting < 8 ? kFitting : 8;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kStageScaleBytes) + kOtherBytes;
};

// The order of a cluster's tiles. Eight token tiles pass together through all channels: tiles that
// run at the same time touch few distinct rows of either matrix, and one pass over the weight
// serves eight token tiles.
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

// TMA maps whose boxes are a whole piece and the last piece of a tile.
struct PieceMaps {
  CUtensorMap whole, last;
};

template <class Shape>
struct LargeShared {
  uint8_t* stages;
  uint8_t* out;
  uint64_t *full, *empty, *residual;
  float* token_scales;
  __device__ __forceinline__ explicit LargeShared(uint8_t* base)
      : stages(base),
        out(base + Shape::kStages * Shape::kStageBytes),
        full(reinterpret_cast<uint64_t*>(out + 2 * Shape::kOutBytes)),
        empty(full + Shape::kStages),
        residual(empty + Shape::kStages),  // for each warpgroup's buffers
        token_scales(reinterpret_cast<float*>(out + 2 * Shape::kOutBytes + Shape::kBarrierBytes)) {}
};

// Calls use(std::integral_constant<int, i>) for every i.
template <int... kIndices, class Use>
__device__ __forceinline__ void for_each_index(std::integer_sequence<int, kIndices...>,
                                               const Use& use) {
  (use(std::integral_constant<int, kIndices>{}), ...);
}

// Loads the stages; run by one thread of the producer warp.
template <class Element, class Shape>
__device__ __forceinline__ void produce(const LargeShared<Shape>& shared, const LargeProblem& p,
                                        const CUtensorMap* x_map, const WeightFeed<Element>& weight,
                                        int cluster, int clusters, int rank) {
  constexpr int kStages = Shape::kStages;
  const int share_begin = rank == 0 ? 0 : Shape::kTokens - Shape::kShare;
  const int tiles = p.token_tiles * p.channel_tiles;
  const auto load_weight = [&](const TileOrder& tile, int block, int stage) {
    barrier_expect(&shared.full[stage], Shape::kArrivingBytes);
    weight.template load<128>(shared.stages + stage * Shape::kStageBytes,
                              (tile.channels * Shape::kCluster + rank) * 128, block,
                              &shared.full[stage]);
  };
  const auto load_tokens = [&](const TileOrder& tile, int block, int stage) {
    uint8_t* to = shared.stages + stage * Shape::kStageBytes + Shape::kWeightBytes;
    const int row = tile.tokens * Shape::kTokens + share_begin;
    tma_load_multicast(to + share_begin * 128, x_map, row, block * kStageColumns<Element>,
                       &shared.full[stage], 3);
    if constexpr (kInBlocks<Element>) {
      bulk_load(shared.token_scales + stage * Shape::kTokens,
                p.token_scales + block * p.token_scale_stride + tile.tokens * Shape::kTokens,
                Shape::kStageScaleBytes, &shared.full[stage]);
    }
  };
  // The first weights are loaded before waiting for earlier kernels.
  const int early = min(kStages, p.k_blocks);
  TileOrder tile(p, cluster);
  for (int block = 0; block < early; ++block) load_weight(tile, block, block);
  wait_for_inputs();
  int stage = 0, parity = 1;
  for (int index = cluster; index < tiles; index += clusters) {
    if (index != cluster) tile = TileOrder(p, index);
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

}  // namespace fusewire::cuda::sm90
