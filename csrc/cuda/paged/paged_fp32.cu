// Paged attention in fp32 on CUDA cores. A warp processes 16 rows (8 if heads are wide) and 32 keys
// at a time. For the scores each lane takes one key, for the output every 32nd column.
#include "cuda/paged/paged_kernel.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {
namespace {

template <class Tile>
struct Fp32Warp {
  static constexpr int kDim = Tile::kDim, kColumns = kDim / 32, kRows = Tile::kWarpRows;
  static constexpr int kStride = Tile::kStride;
  static constexpr int kAllWarps = Tile::kWarps * Tile::kTeams;
  // The shared memory of the block: the queries of the tile, the position and query head of each
  // row, and each warp's weights of a tile of keys.
  struct Own {
    float query[Tile::kRows][kStride];
    int position[Tile::kRows];
    int head[Tile::kRows];
    float weight[kAllWarps][kRows][32];
  };
  static constexpr size_t kOwnBytes = sizeof(Own);

  const PagedWork<Tile>& work;
  Own& own;
  const int warp_row, warp;
  float top[kRows], sum[kRows], out[kRows][kColumns];  // sum: this lane's part of it

  __device__ __forceinline__ Fp32Warp(const PagedWork<Tile>& work, const float* q, char* shared,
                                      int warp_of_team, int warp)
      : work(work),
        own(*reinterpret_cast<Own*>(shared)),
        warp_row(warp_of_team * kRows),
        warp(warp) {
    for (int i = threadIdx.x; i < Tile::kRows * kDim; i += Tile::kThreads) {
      const int row = i / kDim, column = i % kDim;
      const bool wanted = row < work.rows && column < work.shape.head_dim;
      own.query[row][column] = wanted ? work.query(q, row)[column] : 0.0f;
    }
    for (int row = threadIdx.x; row < Tile::kRows; row += Tile::kThreads) {
      own.position[row] = work.position(row);
      own.head[row] = work.query_head(row);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      top[r] = -INFINITY;
      sum[r] = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[r][c] = 0.0f;
    }
    __syncthreads();
  }

  // Attends to the tile in `stage`, whose first key is at position `first`.
  __device__ __forceinline__ void attend(const char* stage, int first) {
    if (warp_row >= work.rows) return;
    const float* keys = reinterpret_cast<const float*>(stage);
    const float* values = reinterpret_cast<const float*>(stage + Tile::kKeyBytes);
    float score[kRows] = {};
    multiply_keys(score, keys);
    weigh(score, first);
    multiply_values(values);
  }

  // Columns are summed in parts of 32, because one long chain of additions would lose precision.
  __device__ __forceinline__ void multiply_keys(float (&score)[kRows], const float* keys) const {
    const float* key = keys + threadIdx.x % 32 * kStride;
#pragma unroll 1
    for (int begin = 0; begin < work.shape.head_dim; begin += 32) {
      float part[kRows] = {};
#pragma unroll 2
      for (int d = begin; d < begin + 32; d += 4) {
        const float4 k = *reinterpret_cast<const float4*>(key + d);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 q = *reinterpret_cast<const float4*>(&own.query[warp_row + r][d]);
          part[r] = fmaf(q.x, k.x, part[r]);
          part[r] = fmaf(q.y, k.y, part[r]);
          part[r] = fmaf(q.z, k.z, part[r]);
          part[r] = fmaf(q.w, k.w, part[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) score[r] += part[r];
    }
  }

  __device__ __forceinline__ void weigh(float (&score)[kRows], int first) {
    const PagedShape& shape = work.shape;
    const int lane = threadIdx.x % 32, position = first + lane;
    const float scale = shape.scale * kLog2E, cap = shape.soft_cap * kLog2E;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int distance = position - own.position[warp_row + r];
      float x = score[r] * scale;
      if (cap > 0.0f) x = cap * tanhf(x / cap);
      if (shape.bias) {
        x = fmaf(shape.bias_at(shape.bias_row(own.head[warp_row + r]), distance), kLog2E, x);
      }
      const bool seen =
          distance <= shape.right && distance >= -shape.left && position < work.item.context;
      x = seen ? x : -INFINITY;
      const float highest = fmaxf(top[r], reduce_lanes<32>(x, Max{}));
      const float base = highest == -INFINITY ? 0.0f : highest;  // a row may see no key so far
      const float correction = exp2f(top[r] - base), weight = exp2f(x - base);
      top[r] = highest;
      sum[r] = fmaf(sum[r], correction, weight);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[r][c] *= correction;
      own.weight[warp][r][lane] = weight;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void multiply_values(const float* values) {
    const float* column = values + threadIdx.x % 32;
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int key = 0; key < 32; key += kTogether) {
      float v[kTogether][kColumns];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) v[k][c] = column[(key + k) * kStride + c * 32];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        using Weights = Pack<float, kTogether>;
        const Weights w = *reinterpret_cast<const Weights*>(&own.weight[warp][r][key]);
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) out[r][c] = fmaf(w.at[k], v[k][c], out[r][c]);
        }
      }
    }
    __syncwarp();  // before the weights of the next tile are written
  }

  __device__ __forceinline__ void show(PagedTeams<Tile>& teams, int team) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float all = reduce_lanes<32>(sum[r], Sum{});
#pragma unroll
      for (int c = 0; c < kColumns; ++c) teams.out[team][warp_row + r][c * 32 + lane] = out[r][c];
      if (lane == 0) {
        teams.top[team][warp_row + r] = top[r];
        teams.sum[team][warp_row + r] = all;
      }
    }
  }
};

template <int dim, int warps, int teams, int stages, int blocks>
struct Fp32Tile {
  using T = float;
  using Stored = float;
  using Warp = Fp32Warp<Fp32Tile>;
  static constexpr int kDim = dim, kWarps = warps, kTeams = teams, kStages = stages;
  static constexpr int kBlocks = blocks, kKeys = 32;
  static constexpr int kWarpRows = dim <= 128 ? 16 : 8, kRows = kWarpRows * kWarps;
  static constexpr int kThreads = 32 * kWarps * kTeams;
  static constexpr int kStride = kDim + 4;  // rows start in different banks
  static constexpr int kKeyBytes = kKeys * kStride * 4, kStageBytes = 2 * kKeyBytes;

  __device__ __forceinline__ static int key_offset(int row, int chunk) {
    return (row * kStride + chunk * 4) * 4;
  }
  __device__ __forceinline__ static int value_offset(int row, int chunk) {
    return key_offset(row, chunk);
  }
};

// Template parameters: head_dim, teams, stages, blocks per multiprocessor.
template <int kDim, int kTeams, int kStages, int kBlocks>
using Few = Fp32Tile<kDim, 1, kTeams, kStages, kBlocks>;
template <int kDim, int kStages, int kBlocks>
using Many = Fp32Tile<kDim, 4, 1, kStages, kBlocks>;

}  // namespace

void paged_fp32_attention(const AttentionArguments& a, const Stream& stream) {
  const PagedShape shape(a, paged_vectors_fit<float, float>(a));
  const auto run = [&](auto few, auto many) {
    launch_paged_tiles<decltype(few), decltype(many)>(a, shape, stream);
  };
  if (a.head_dim <= 32) return run(Few<32, 4, 2, 2>{}, Many<32, 2, 2>{});
  if (a.head_dim <= 64) return run(Few<64, 4, 1, 2>{}, Many<64, 2, 2>{});
  if (a.head_dim <= 128) return run(Few<128, 4, 1, 1>{}, Many<128, 2, 2>{});
  run(Few<256, 2, 1, 1>{}, Many<256, 1, 1>{});
}

}  // namespace fusewire::cuda
