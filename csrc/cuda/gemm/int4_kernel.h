// Multiplies few rows of 16-bit elements by a matrix of 4-bit elements; the time is that of reading
// the matrix.
//
// Products are transposed: the matrix's channels are the 16 rows of mma and tokens its 8 columns.
// The teams of a block share k: each takes every kDeep-th unit. The warps of a team share its
// tokens, and each warp has its own tiles of channels. A team copies its units into a ring of
// pipeline stages by cp.async, dequantises codes in registers (int4_weight.h), and multiplies. It
// multiplies a unit's sums by the scales of their channel and group and accumulates them.
// Dequantised elements are exact; sums and scales are fp32. At the end the sums of a block's teams
// are added up, and those of the blocks of its cluster, which share k too.
//
// Weights do not depend on earlier kernels and are fetched before wait_for_inputs().
#pragma once

#include "cuda/activation.h"
#include "cuda/cluster.h"
#include "cuda/element.h"
#include "cuda/gemm/int4_weight.h"
#include "cuda/launch.h"
#include "cuda/mma.h"

namespace fusewire::cuda::nibbles {

struct Problem {
  const uint8_t* codes;
  const uint32_t* words;
  const void* x;
  int64_t x_stride;
  const void* bias;      // null: none
  const void* residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  int m, n, k;
  int tiles, units, groups, shift;  // shift: group_shift
  int slices;                       // slices of k: the blocks of a cluster
  int rows;                         // tokens that a stage has room for
  Activation activation;
};

// A block has kDeep teams, which share k. A team has kAcross warps with kTiles tiles each.
template <int kTokens_, int kTiles_, int kAcross_, int kDeep_, int kStages_, int kBlocksPerSm_>
struct Shape {
  static constexpr int kTokens = kTokens_, kTiles = kTiles_, kAcross = kAcross_, kDeep = kDeep_;
  static constexpr int kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = kAcross * kDeep, kThreads = 32 * kWarps;
  static constexpr int kChannels = kTileChannels * kTiles * kAcross;
  static constexpr int kColumns = kTokens / 8;
  static constexpr int kRow = kChannels + 4;  // stride of sums; neighbouring lanes use different
                                              // banks
  static constexpr int kSums = kTokens * kRow, kSumBytes = kDeep * kSums * 4;
};

template <class Shape, bool kFine>
struct Ring {
  static constexpr int kRowBytes = kUnitInputs * 2;  // of a token
  static constexpr int kWordBytes = (kFine ? 2 : 1) * kTileChannels * 4;
  static constexpr int kWarpBytes = Shape::kTiles * (kUnitBytes + kWordBytes);
  __host__ __device__ static int stage_bytes(int rows) {  // of one team
    return Shape::kAcross * kWarpBytes + rows * kRowBytes;
  }
  __host__ __device__ static int bytes(int rows) {
    const int ring = Shape::kDeep * Shape::kStages * stage_bytes(rows);
    return ring > Shape::kSumBytes ? ring : Shape::kSumBytes;
  }
};

// Synchronises the warps of a team.
template <class Shape>
__device__ __forceinline__ void meet(int team) {
  if constexpr (Shape::kAcross == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(32 * Shape::kAcross) : "memory");
  }
}

// Grid: x = blocks of channels * slices, y = blocks of tokens. kFine: groups of 32 inputs.
template <class T, class Shape, bool kFine>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    product_kernel(const __grid_constant__ Problem p) {
  using Memory = Ring<Shape, kFine>;
  constexpr int kTiles = Shape::kTiles, kColumns = Shape::kColumns, kDeep = Shape::kDeep;
  constexpr int kAcross = Shape::kAcross, kStages = Shape::kStages, kSets = kFine ? 2 : 1;
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int across = threadIdx.x / 32 % kAcross, team = threadIdx.x / 32 / kAcross;
  const int slice = blockIdx.x % p.slices, block = blockIdx.x / p.slices;
  const int first_token = blockIdx.y * Shape::kTokens;
  const int begin = static_cast<int>(static_cast<int64_t>(p.units) * slice / p.slices) + team;
  const int end = static_cast<int>(static_cast<int64_t>(p.units) * (slice + 1) / p.slices);
  const int count = begin < end ? (end - begin + kDeep - 1) / kDeep : 0;  // units of this team

  // For tiles and tokens beyond the end, others are read instead; their results are dropped.
  const int stage_bytes = Memory::stage_bytes(p.rows);
  const uint32_t ring = shared_address(memory) + team * kStages * stage_bytes;
  const uint32_t ring_end = ring + kStages * stage_bytes;
  const uint32_t own = across * Memory::kWarpBytes, own_words = own + kTiles * kUnitBytes;
  const auto place = [](int token, int vector) { return token * 64 + (vector ^ token / 2) * 16; };
  const uint32_t tokens = kAcross * Memory::kWarpBytes;
  const int last_tile = p.tiles - 1;
  const int first_tile = min((block * kAcross + across) * kTiles, last_tile);
  const int64_t tile_bytes = static_cast<int64_t>(p.units) * kUnitBytes;
  const uint8_t* codes = p.codes + first_tile * tile_bytes + begin * kUnitBytes + lane * 16;
  int64_t tile_at[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) tile_at[i] = min(i, last_tile - first_tile) * tile_bytes;
  constexpr int kLanes = 4 * kSets;  // lanes that fetch a tile's words
  const uint32_t* words =
      p.words + lane % kLanes * 4 +
      static_cast<int64_t>(min(first_tile + lane / kLanes, last_tile)) * p.groups * kTileChannels;
  int group_unit = begin;  // the unit that is fetched next
  const auto fetch_weight = [&](uint32_t to) {
    to += own + lane * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) copy_16(to + i * kUnitBytes, codes + tile_at[i], true);
    if (lane < kTiles * kLanes) {
      const int group = kFine ? 2 * group_unit : group_unit >> p.shift;
      copy_16(to + kTiles * kUnitBytes, words + group * kTileChannels, true);
    }
    codes += kDeep * kUnitBytes;
    group_unit += kDeep;
  };

  // In shared memory the inputs of 8 tokens for steps 0 and 1 are contiguous, and so are those for
  // steps 2 and 3: 64 bytes per token, whose four vectors are swizzled so that ldmatrix reads the
  // vectors of 8 tokens from different banks. The columns of tokens are distributed over the warps
  // of a team.
  constexpr bool kFew = Shape::kTokens == 8;  // rows beyond the end take no shared memory
  const int half_bytes = kFew ? p.rows * 64 : 512;
  const bool mine = !kFew || g < p.rows;
  const T* x = static_cast<const T*>(p.x) + (first_token + 8 * across + g) * p.x_stride +
               begin * kUnitInputs + 8 * t;
  const int64_t column_step = 8 * kAcross * p.x_stride;
  int left = p.k - begin * kUnitInputs - 8 * t;  // inputs from the lane's first on
  const auto fetch_tokens = [&](uint32_t to) {
    to += tokens + across * 8 * Memory::kRowBytes + place(g, t);
#pragma unroll
    for (int c = 0; c < (kColumns + kAcross - 1) / kAcross; ++c) {
      const int column = across + c * kAcross;
      if (kColumns % kAcross != 0 && column >= kColumns) break;
      const bool inside = first_token + 8 * column + g < p.m;
      const T* from = inside ? x + c * column_step : static_cast<const T*>(p.x);
      if (mine) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool wanted = inside && left > 32 * h;
          copy_16(to + c * kAcross * 8 * Memory::kRowBytes + h * half_bytes,
                  wanted ? from + 32 * h : static_cast<const T*>(p.x), wanted);
        }
      }
    }
    x += kDeep * kUnitInputs;
    left -= kDeep * kUnitInputs;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) fetch_weight(ring + i * stage_bytes);
  }
  wait_for_inputs();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) fetch_tokens(ring + i * stage_bytes);
    end_copies();
  }

  float sums[kTiles][kColumns][4] = {};
  const int read = kFew ? min(lane % 8, p.rows - 1) : lane % 8;
  const uint32_t inputs_at = tokens + place(read, lane / 8);
  uint32_t here = ring, free = ring_end - stage_bytes;
#pragma unroll 1
  for (int unit = 0; unit < count; ++unit) {
    wait_copies<kStages - 2>();
    meet<Shape>(team);
    if (unit + kStages - 1 < count) {
      fetch_weight(free);
      fetch_tokens(free);
    }
    end_copies();

    uint32_t a[kTiles][kSteps][4];
    float scales[kTiles][kSets][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 packed = load_shared_16(here + own + lane * 16 + i * kUnitBytes);
      const uint32_t steps[kSteps] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        const uint2 pair = load_shared_8(here + own_words + g * 8 + (i * kSets + set) * 64);
        scales[i][set][0] = scale_of(pair.x);
        scales[i][set][1] = scale_of(pair.y);
        const ZeroPoints<T> zeros(pair.x, pair.y);
#pragma unroll
        for (int s = set * kSteps / kSets; s < (set + 1) * kSteps / kSets; ++s) {
          fragment<T>(steps[s], zeros, a[i][s]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint32_t at = here + inputs_at + c * 8 * Memory::kRowBytes;
      const uint4 half[2] = {load_matrices(at), load_matrices(at + half_bytes)};
      const uint32_t inputs[kSteps][2] = {{half[0].x, half[0].y},
                                          {half[0].z, half[0].w},
                                          {half[1].x, half[1].y},
                                          {half[1].z, half[1].w}};
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        float part[kTiles][4] = {};
#pragma unroll
        for (int s = set * kSteps / kSets; s < (set + 1) * kSteps / kSets; ++s) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            multiply_add<T>(part[i], a[i][s], inputs[s][0], inputs[s][1]);
          }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[i][c][j] = fmaf(part[i][j], scales[i][set][j / 2], sums[i][c][j]);
          }
        }
      }
    }
    free = here;
    here += stage_bytes;
    if (here == ring_end) here = ring;
  }

  // The ring's memory is reused for sums [kDeep][tokens][channels].
  __syncthreads();
  float* all = reinterpret_cast<float*>(memory);
  float* to = all + team * Shape::kSums + across * kTiles * kTileChannels + g;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[(8 * c + 2 * t + j % 2) * Shape::kRow + i * kTileChannels + j / 2 * 8] = sums[i][c][j];
      }
    }
  }
  p.slices > 1 ? wait_for_cluster() : __syncthreads();
  const int results = min(Shape::kTokens, p.m - first_token) * Shape::kChannels;
  for (int e = slice * Shape::kThreads + threadIdx.x; e < results;
       e += p.slices * Shape::kThreads) {
    const int token = e / Shape::kChannels, channel = e % Shape::kChannels;
    const int row = first_token + token, column = block * Shape::kChannels + channel;
    if (column >= p.n) continue;
    const uint32_t from = shared_address(all + token * Shape::kRow + channel);
    float sum = 0.0f;
    for (int other = 0; other < p.slices; ++other) {
#pragma unroll
      for (int d = 0; d < kDeep; ++d) sum += load_of_block(from + d * Shape::kSums * 4, other);
    }
    if (p.bias) sum += to_float(static_cast<const T*>(p.bias)[column]);
    sum = activated<T>(sum, p.activation);
    if (p.residual) {
      sum += to_float(static_cast<const T*>(p.residual)[row * p.residual_stride + column]);
    }
    static_cast<T*>(p.out)[row * p.out_stride + column] = from_float<T>(sum);
  }
  if (p.slices > 1) wait_for_cluster();  // no block exits before its sums are read
}

}  // namespace fusewire::cuda::nibbles
