// Matrix product for many tokens: persistent blocks of a producer warp, which fills a ring of
// pipeline stages in shared memory by TMA, and two consumer warpgroups. A tile is 128 channels x
// kTokens tokens. T is the type of the results, Element that of the operands: T, e4m3, also in
// blocks, int8, or Int4 for a weight of 4 bits.
//
//  - Cooperating warpgroups each take 64 channels of one tile: the largest tiles fit. The residual
//    is loaded into registers during the main loop.
//  - Ping-pong warpgroups each take whole tiles, in turn: one's epilogue (an erf costs a quarter of
//    a k = 768 main loop) runs while the other keeps the tensor cores busy.
//
// The two blocks of a cluster take neighbouring channels of the same tokens: each fetches half of
// the token tile and multicasts it to both, since the bandwidth of L2 alone cannot feed the tensor
// cores of 132 multiprocessors.
#pragma once

#include "cuda/gemm/sm90_gemm_blocks.h"
#include "cuda/gemm/sm90_gemm_feed.h"
#include "cuda/gemm/sm90_int4_stage.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// Runs a consumer warpgroup; `group` is 0 or 1.
template <class T, class Element, class Shape>
__device__ __forceinline__ void consume(const LargeShared<Shape>& shared, const LargeProblem& p,
                                        const PieceMaps& out_maps, const PieceMaps& residual_maps,
                                        int cluster, int clusters, int rank, int group) {
  constexpr int kStages = Shape::kStages, kBlocks = Shape::kBlocks, kTokens = Shape::kTokens;
  constexpr int kParts = Shape::kParts, kPieces = Shape::kPieces, kBuffers = Shape::kBuffers;
  constexpr int kTurns = Shape::kPingPong ? 2 : 1;
  constexpr int kChannelsOfOutput = kGated<Element> ? 2 : 1;
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int tiles = p.token_tiles * p.channel_tiles;
  const int first_channel = Shape::kPingPong ? 0 : 64 * group;
  uint8_t* out = shared.out + group * Shape::kOutBytes;
  const T* bias = static_cast<const T*>(p.bias);
  uint64_t* residual_full = shared.residual + group * kBuffers;
  uint32_t residual_parities = 0;  // a bit per buffer
  // The stage and parity at which this warpgroup's next tile begins, and how many stages are left
  // from there on.
  const int position = Shape::kPingPong ? group * p.k_blocks : 0;
  int stage = position % kStages, parity = position / kStages % 2;
  int left = (tiles - cluster + clusters - 1) / clusters * p.k_blocks - position;
  const auto release = [&](int s) {
    // Arrivals that no load waits for are skipped: the other block may have exited.
    if (left-- <= kStages) return;
    const int arriving = Shape::kReleases == 1 ? thread : lane;
    if (arriving < Shape::kCluster) barrier_arrive_at(&shared.empty[s], arriving);
  };
  const auto release_last = [&] {  // releases the stage before `stage`
    release((stage == 0 ? kStages : stage) - 1);
  };
  // A warpgroup begins its main loop once the other has seen all of its own stages filled: barriers
  // distinguish phases by parity only, so no thread may wait for a phase beyond the next one.
  const auto let_other_begin = [&] { named_barrier_arrive(3 + (group ^ 1), 256); };
  if (Shape::kPingPong && group == 1) let_other_begin();
  constexpr auto kEveryPart = std::make_integer_sequence<int, kParts>{};
  [[maybe_unused]] const auto codes_place = [&] {
    if constexpr (kInt4<Element>) {
      return Int4Place<Element, 128>(first_channel / 16 + warp);
    } else {
      return 0;
    }
  }();
  wait_for_inputs();

  for (int index = cluster + (Shape::kPingPong ? group * clusters : 0); index < tiles;
       index += kTurns * clusters) {
    const TileOrder tile(p, index);
    const int token = tile.tokens * kTokens;
    const int channel = (tile.channels * Shape::kCluster + rank) * 128 + first_channel;
    const auto load_residual = [&](int part) {  // run by thread 0
      const int block = part / kPieces, piece = part % kPieces, buffer = part % kBuffers;
      const bool last = piece == kPieces - 1;
      barrier_expect(&residual_full[buffer], (last ? Shape::kLastPiece : Shape::kPiece) * 128);
      tma_load(out + buffer * Shape::kPieceBytes, last ? &residual_maps.last : &residual_maps.whole,
               token + piece * Shape::kPiece, channel + 64 * block, &residual_full[buffer]);
    };
    const auto await_residual = [&](int buffer) {
      barrier_wait(&residual_full[buffer], residual_parities >> buffer & 1);
      residual_parities ^= 1 << buffer;
    };
    const int residual_at = min(1, p.k_blocks - 1);  // by then the last tile's results are stored
    uint32_t held[kTokens / 4];
    const auto hold_residual = [&](auto index, int k) {
      constexpr int kPart = decltype(index)::value, kBuffer = kPart % kBuffers;
      if (k != max(residual_at, (kPart + 1) * p.k_blocks / (kParts + 1))) return;
      await_residual(kBuffer);
      load_piece<kTokens, kPart * Shape::kPiece, Shape::piece_end(kPart)>(
          held, out + kBuffer * Shape::kPieceBytes);
      if constexpr (kPart + kBuffers < kParts) {
        named_barrier_sync(1 + group, 128);
        if (thread == 0) load_residual(kPart + kBuffers);
      }
    };
    // The weight's row of a thread's first or second channel of a block.
    const auto thread_channel = [&](int block, int second) {
      const int first = channel + 64 * block;
      return kGated<Element> ? first / 2 + 8 * warp + lane / 4 + (second ? p.n / 2 : 0)
                             : first + 16 * warp + lane / 4 + 8 * second;
    };
    float biases[kBlocks][2];
    const auto load_biases = [&] {
#pragma unroll
      for (int b = 0; b < 2 * kBlocks; ++b) {
        const int c = thread_channel(b / 2, b % 2);
        biases[b / 2][b % 2] = bias != nullptr && c < p.n ? to_float(bias[c]) : 0.0f;
      }
    };
    if constexpr (Shape::kPingPong) {
      load_biases();
      named_barrier_sync(3 + group, 256);
    }
    // Loaded while the first products run; the epilogue reads them from shared memory.
    float* token_scales = shared.token_scales + group * kTokens;
    float thread_scales[2] = {};
    if constexpr (kScaled<Element>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = thread + 128 * i;
        if (t < kTokens) thread_scales[i] = __ldcg(p.token_scales + token + t);
      }
    }
    SumOf<Element> d[kBlocks][kTokens / 2];
    // For e4m3: the sums since the last promotion, of two stages. The warpgroups promote in turn,
    // so that the products of one run meanwhile.
    [[maybe_unused]] float part[kPromoted<Element> && !kInBlocks<Element> ? kTokens / 2 : 1];
    [[maybe_unused]] bool fresh = true;
    if constexpr (kPromoted<Element> && !kInBlocks<Element>) {
      static_assert(kBlocks == 1, "registers hold one block's sums twice");
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) d[0][i] = 0.0f;
    }
    const auto meanwhile = [&](int k) {
      if (!p.has_residual) return;
      if (k == residual_at && thread == 0) {
        tma_store_wait<0>();
#pragma unroll
        for (int part = 0; part < kBuffers; ++part) load_residual(part);
      }
      if constexpr (!Shape::kPingPong) {
        for_each_index(kEveryPart, [&](auto part) { hold_residual(part, k); });
      }
    };
    if constexpr (kInBlocks<Element>) {
      const auto next_stage = [&] {
        barrier_wait(&shared.full[stage], parity);
        const uint8_t* at = shared.stages + stage * Shape::kStageBytes;
        const BlockStage found = {stage, k_major_descriptor(at + first_channel * 128),
                                  k_major_descriptor(at + Shape::kWeightBytes),
                                  shared.token_scales + stage * kTokens};
        if (++stage == kStages) stage = 0, parity ^= 1;
        return found;
      };
      const BlockScales channel_scales(p.channel_scales, p.n, p.k_blocks, channel, 0, p.k_blocks);
      multiply_blocks<kTokens>(d[0], channel_scales, p.k_blocks, next_stage, release, meanwhile);
    } else {
      for_each_stage<Element>(p.k_blocks, [&](int k, [[maybe_unused]] StageNumbers& numbers) {
        barrier_wait(&shared.full[stage], parity);
        const uint8_t* at = shared.stages + stage * Shape::kStageBytes;
        const uint64_t weight = k_major_descriptor(at + first_channel * 128);
        const uint64_t tokens = k_major_descriptor(at + Shape::kWeightBytes);
        if constexpr (kPromoted<Element>) {
          multiply_stage<kTokens>(part, weight, tokens, fresh);
          fresh = (k + group) % 2 != 0 || k + 1 == p.k_blocks;
          if (fresh) {
            promote<kTokens>(d[0], part);
          } else {
            wgmma_wait<1>();
          }
        } else if constexpr (kInt4<Element>) {
          static_assert(kBlocks == 1, "registers hold the numbers of one block");
          numbers_of_codes(numbers, shared_address(at), codes_place);
          multiply_numbers<kTokens, T>(d[0], numbers, tokens, k == 0);
          wgmma_wait<1>();
        } else {
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
              wgmma<kTokens, NumberOf<Element>>(d[b], weight + 512 * b + 2 * step,
                                                tokens + 2 * step, (k | step) != 0);
            }
          }
          wgmma_commit();
          wgmma_wait<1>();
        }
        if (k != 0) release_last();
        meanwhile(k);
        if (++stage == kStages) stage = 0, parity ^= 1;
      });
    }
    if (Shape::kPingPong && index + clusters < tiles) let_other_begin();
    const auto scales_of = [&](int block) {
      if constexpr (kScaled<Element>) {
        return RowScales<true>(token_scales, p.channel_scales,
                               channel + 64 * block + 16 * warp + lane / 4, p.n);
      } else {
        return NoScales{};
      }
    };
    if constexpr (!Shape::kPingPong) load_biases();  // while the last products run
    const auto first_scales = scales_of(0);
    if constexpr (kScaled<Element>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = thread + 128 * i;
        if (t < kTokens) token_scales[t] = thread_scales[i];
      }
      named_barrier_sync(1 + group, 128);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) wgmma_results(d[b]);
    if constexpr (!kInBlocks<Element>) release_last();

    if constexpr (!Shape::kPingPong) {
      const auto finish = [&](auto index) {
        constexpr int kPart = decltype(index)::value;
        constexpr int kBegin = kPart * Shape::kPiece, kEnd = Shape::piece_end(kPart);
        uint8_t* to = out + kPart % kBuffers * Shape::kPieceBytes;
        if (kPart == 0 || kPart >= kBuffers) {
          if (thread == 0) tma_store_wait<kPart == 0 ? 0 : kBuffers - 1>();
          named_barrier_sync(1 + group, 128);
        }
        with_activation(p.activation, [&](const auto& activate) {
          if constexpr (kGated<Element>) {
            store_gated_piece<T, kTokens, kBegin, kEnd>(d[0], biases[0], to, activate);
          } else if (p.has_residual) {
            store_piece<T, kTokens, kBegin, kEnd>(d[0], first_scales, biases[0], to, activate,
                                                  ResidualInRegisters<kTokens>{held});
          } else {
            store_piece<T, kTokens, kBegin, kEnd>(d[0], first_scales, biases[0], to, activate,
                                                  NoResidual{});
          }
        });
        fence_async_shared();
        named_barrier_sync(1 + group, 128);
        if (thread == 0) {
          tma_store(kPart == kParts - 1 ? &out_maps.last : &out_maps.whole, token + kBegin,
                    channel / kChannelsOfOutput, to);
          tma_store_commit();
        }
      };
      for_each_index(kEveryPart, finish);
    } else {
      const auto finish = [&](auto index) {
        constexpr int kBlock = decltype(index)::value;
        const auto scales = kBlock == 0 ? first_scales : scales_of(kBlock);
        if (p.has_residual) {
          await_residual(0);
          store_piece<T, kTokens, 0, kTokens>(d[kBlock], scales, biases[kBlock], out,
                                              NoActivation{}, ResidualInPiece{});
        } else {
          if (thread == 0) tma_store_wait<0>();
          named_barrier_sync(1 + group, 128);
          with_activation(p.activation, [&](const auto& activate) {
            if constexpr (kGated<Element>) {
              store_gated_piece<T, kTokens, 0, kTokens>(d[kBlock], biases[kBlock], out, activate);
            } else {
              store_piece<T, kTokens, 0, kTokens>(d[kBlock], scales, biases[kBlock], out, activate,
                                                  NoResidual{});
            }
          });
        }
        fence_async_shared();
        named_barrier_sync(1 + group, 128);
        if (thread == 0) {
          tma_store(&out_maps.last, token, (channel + 64 * kBlock) / kChannelsOfOutput, out);
          tma_store_commit();
          if (p.has_residual && kBlock + 1 < kBlocks) {
            tma_store_wait<0>();
            load_residual(kBlock + 1);
          }
        }
      };
      for_each_index(kEveryPart, finish);
      left -= p.k_blocks;  // skips the other warpgroup's tile
      stage += p.k_blocks;
      parity ^= stage / kStages % 2;
      stage %= kStages;
    }
  }
  if (thread == 0) tma_store_wait<0>();
}

template <class T, class Element, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    large_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ WeightFeed<Element> weight,
                 const __grid_constant__ PieceMaps out_maps,
                 const __grid_constant__ PieceMaps residual_maps,
                 const __grid_constant__ LargeProblem p) {
  extern __shared__ __align__(1024) uint8_t base[];
  const LargeShared<Shape> shared(base);
  const int rank = cluster_rank();
  const int cluster = blockIdx.x / Shape::kCluster, clusters = gridDim.x / Shape::kCluster;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s],
                   Shape::kCluster * (Shape::kPingPong ? 1 : 2) * Shape::kReleases);
    }
    for (int b = 0; b < 2 * Shape::kBuffers; ++b) barrier_init(&shared.residual[b], 1);
    barrier_init_fence();
    map_prefetch(&x_map);
    weight.prefetch();
    map_prefetch(&out_maps.whole);
  }
  let_next_start();
  cluster_arrive_relaxed();
  cluster_wait();

  const int group = threadIdx.x / 128;
  if (group == 0) {
    registers_shrink_to<24>();
    if (threadIdx.x == 0) {
      produce<Element, Shape>(shared, p, &x_map, weight, cluster, clusters, rank);
    }
  } else {
    registers_grow_to<240>();
    consume<T, Element, Shape>(shared, p, out_maps, residual_maps, cluster, clusters, rank,
                               group - 1);
  }
}

}  // namespace fusewire::cuda::sm90
