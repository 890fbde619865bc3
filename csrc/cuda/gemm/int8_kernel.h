// Kernel of an int8 product. A block computes a tile of tokens x channels. Pipeline stages of k, 64
// bytes of each row, are copied by cp.async into a ring of buffers in shared memory. A warp
// computes kWarpTokens tokens by kWarpChannels channels.
//
// Channels are assigned to the columns of mma such that a thread ends up with 8 neighbouring
// channels of a token, which are one vector of the output.
#pragma once

#include <type_traits>

#include "cuda/activation.h"
#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/mma.h"

namespace fusewire::cuda::int8 {

constexpr int kStageBytes = 64;            // of k, per row
constexpr int kChunks = kStageBytes / 16;  // 16-byte chunks of a row, the unit of copies and
                                           // ldmatrix
constexpr int kStepBytes = 32;             // bytes of k per mma
constexpr int kColumnTiles = 4;            // tiles of 8 channels, whose sums together make vectors
constexpr int kVectorChannels = 8 * kColumnTiles;

struct Problem {
  const int8_t *x, *weight;
  int64_t x_stride, weight_stride;
  const float *token_scales, *channel_scales;
  const void* bias;      // null: none
  const void* residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  int m, n, k;
  bool vectors;         // out, bias and residual are aligned for vectors
  bool channels_first;  // the grid's x is over channels
};

template <int kTokens_, int kChannels_, int kWarpTokens_, int kWarpChannels_, int kStages_>
struct Shape {
  static constexpr int kTokens = kTokens_, kWarpTokens = kWarpTokens_;
  static constexpr int kChannels = kChannels_, kWarpChannels = kWarpChannels_;
  static constexpr int kStages = kStages_;
  static constexpr int kAcross = kChannels / kWarpChannels, kDown = kTokens / kWarpTokens;
  static constexpr int kThreads = 32 * kAcross * kDown;
  static constexpr int kRowTiles = kWarpTokens / 16, kGroups = kWarpChannels / kVectorChannels;
  static constexpr int kTokenBytes = kTokens * kStageBytes;
  static constexpr int kBytes = kTokenBytes + kChannels * kStageBytes;  // of a stage
  static constexpr int kSharedBytes = kStages * kBytes;
  static constexpr int kRowsAtOnce = kThreads / kChunks;  // rows copied at a time
  static_assert(kTokens % kRowsAtOnce == 0 && kChannels % kRowsAtOnce == 0);
};

// sum[16, 8] += a[16, 32] . b[32, 8]
__device__ __forceinline__ void multiply_add(int32_t (&sum)[4], const uint4& a, uint32_t b0,
                                             uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Returns the offset of a chunk of a row, swizzled such that the 8 rows of an ldmatrix matrix lie
// in different banks: 8 neighbouring tokens, or the 8 channels that channel_of() names.
__device__ __forceinline__ int place(int row, int chunk) {
  return row * kStageBytes + ((chunk ^ (row / 2 + row / 8)) % kChunks) * 16;
}

// Returns which of 32 channels a column of the tile-th mma is: a thread has columns 2 t and 2 t +
// 1.
__device__ __forceinline__ int channel_of(int tile, int column) {
  return column / 2 * 8 + 2 * tile + column % 2;
}

// Epilogue of a thread: converts its sums of one token and the 8 channels from `channel` on, and
// stores them.
template <class T, Activation kActivation>
struct Output {
  const Problem& p;
  int channel;
  float scales[8], bias[8];

  __device__ __forceinline__ Output(const Problem& p, int channel) : p(p), channel(channel) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = channel + i < p.n;
      scales[i] = inside ? p.channel_scales[channel + i] : 0.0f;
      bias[i] = p.bias && inside ? to_float(static_cast<const T*>(p.bias)[channel + i]) : 0.0f;
    }
  }

  __device__ __forceinline__ void store(int token, const int32_t (&sums)[8]) const {
    if (token >= p.m || channel >= p.n) return;
    const float token_scale = p.token_scales[token];
    float results[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // no fused multiply-adds: every kernel gives the same bits
      const float sum = __fmul_rn(__fmul_rn(__int2float_rn(sums[i]), token_scale), scales[i]);
      results[i] = activated<T>(__fadd_rn(sum, bias[i]), kActivation);
    }
    T* out = static_cast<T*>(p.out) + token * p.out_stride + channel;
    const T* residual = static_cast<const T*>(p.residual) + token * p.residual_stride + channel;
    if (p.vectors) {
      Vector<T> made, added;
      if (p.residual) added = Vector<T>::load(residual);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        made.at[i] = from_float<T>(p.residual ? results[i] + to_float(added.at[i]) : results[i]);
      }
      made.store(out);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (channel + i >= p.n) break;
        out[i] = from_float<T>(p.residual ? results[i] + to_float(residual[i]) : results[i]);
      }
    }
  }
};

// Grid: x = blocks of tokens, y = blocks of channels, or the other way round: neighbouring blocks
// read the same rows of the larger matrix, so that these are read from memory once.
template <class T, class Shape, Activation kActivation>
__global__ void __launch_bounds__(Shape::kThreads)
    product_kernel(const __grid_constant__ Problem p) {
  constexpr int kStages = Shape::kStages, kRowTiles = Shape::kRowTiles, kGroups = Shape::kGroups;
  extern __shared__ __align__(128) uint8_t memory[];
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_token = (p.channels_first ? blockIdx.y : blockIdx.x) * Shape::kTokens;
  const int first_channel = (p.channels_first ? blockIdx.x : blockIdx.y) * Shape::kChannels;
  const uint32_t ring = shared_address(memory);
  const int stages = (p.k + kStageBytes - 1) / kStageBytes;

  // Rows and columns beyond m, n and k are filled with zeros. A thread copies one chunk of every
  // kRowsAtOnce-th row.
  constexpr int kRowsAtOnce = Shape::kRowsAtOnce;
  const int copied = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const auto fetch = [&](uint32_t to, const int8_t* from, int64_t stride, int first, auto rows,
                         int end, int k) {
    from += (first + copied) * stride + k;
#pragma unroll
    for (int i = 0; i < rows / kRowsAtOnce; ++i) {
      const int row = copied + i * kRowsAtOnce;
      const bool wanted = first + row < end && k < p.k;
      copy_16(to + place(row, chunk), wanted ? from : p.weight, wanted);
      from += kRowsAtOnce * stride;
    }
  };
  const auto fetch_weight = [&](uint32_t to, int stage) {
    constexpr auto kRows = std::integral_constant<int, Shape::kChannels>{};
    fetch(to + Shape::kTokenBytes, p.weight, p.weight_stride, first_channel, kRows, p.n,
          stage * kStageBytes + chunk * 16);
  };
  const auto fetch_tokens = [&](uint32_t to, int stage) {
    constexpr auto kRows = std::integral_constant<int, Shape::kTokens>{};
    fetch(to, p.x, p.x_stride, first_token, kRows, p.m, stage * kStageBytes + chunk * 16);
  };
  // Weights do not depend on earlier kernels.
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < stages) fetch_weight(ring + i * Shape::kBytes, i);
  }
  wait_for_inputs();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < stages) fetch_tokens(ring + i * Shape::kBytes, i);
    end_copies();
  }

  // A lane's row in the four matrices that ldmatrix loads at a time, in the order of mma. For
  // tokens: 8 rows and the next 8, then the next 16 bytes of both. For channels: 16 bytes and the
  // next 16, then those of the next tile.
  const int token = warp / Shape::kAcross * Shape::kWarpTokens + lane / 8 % 2 * 8 + lane % 8;
  const int channels = warp % Shape::kAcross * Shape::kWarpChannels;
  int32_t sums[kGroups][kRowTiles][kColumnTiles][4] = {};
  uint32_t here = ring, free = ring + (kStages - 1) * Shape::kBytes;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    wait_copies<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < stages) {
      fetch_weight(free, stage + kStages - 1);
      fetch_tokens(free, stage + kStages - 1);
    }
    end_copies();
#pragma unroll
    for (int step = 0; step < kStageBytes / kStepBytes; ++step) {
      uint4 columns[kGroups][kColumnTiles / 2];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int j = 0; j < kColumnTiles / 2; ++j) {
          const int row =
              channels + group * kVectorChannels + channel_of(2 * j + lane / 16, lane % 8);
          columns[group][j] =
              load_matrices(here + Shape::kTokenBytes + place(row, 2 * step + lane / 8 % 2));
        }
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint4 rows = load_matrices(here + place(token + 16 * i, 2 * step + lane / 16));
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int j = 0; j < kColumnTiles / 2; ++j) {
            const uint4& pair = columns[group][j];
            multiply_add(sums[group][i][2 * j], rows, pair.x, pair.y);
            multiply_add(sums[group][i][2 * j + 1], rows, pair.z, pair.w);
          }
        }
      }
    }
    free = here;
    here = here == ring + (kStages - 1) * Shape::kBytes ? ring : here + Shape::kBytes;
  }

  const int g = lane / 4, t = lane % 4;
  const int first = first_token + warp / Shape::kAcross * Shape::kWarpTokens + g;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const Output<T, kActivation> output(p,
                                        first_channel + channels + group * kVectorChannels + 8 * t);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int32_t together[8];
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          together[2 * j] = sums[group][i][j][2 * half];
          together[2 * j + 1] = sums[group][i][j][2 * half + 1];
        }
        output.store(first + 16 * i + 8 * half, together);
      }
    }
  }
}

}  // namespace fusewire::cuda::int8
