// A warp of attention for small batches (split_attention.cu): 16 queries of one head and a part of
// the keys. It fetches all its data at once.
//
// Each thread fetches exactly what its own lane of mma.sync (mma.h) reads, so no thread waits for
// another. Queries and keys: as in flash_kernel.h, a thread takes 16 contiguous bytes of both.
// Values: the columns of a product may come in any order, so column n of its tile m is column 8 n +
// m of the head. A thread then again needs 16 contiguous bytes of a row, and holds 16 adjacent
// columns of the result. Keys and values are fetched into shared memory, because the compiler would
// delay loads into registers to need fewer of them.
#pragma once

#include "cuda/activation.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/flash_memory.h"
#include "cuda/element.h"
#include "cuda/mma.h"

namespace fusewire::cuda {

// The tile of a block. Each warp has 16 * kSteps keys.
template <class Element, int dim, int warps, int steps>
struct SplitTile {
  static_assert(dim % 64 == 0);
  using T = Element;
  static constexpr int kDim = dim, kWarps = warps, kSteps = steps;
  static constexpr int kRows = 16, kWarpKeys = 16 * kSteps, kKeys = kWarps * kWarpKeys;
  static constexpr int kThreads = 32 * kWarps;
};

template <class Tile>
struct SplitMemory {
  static constexpr int kKeyVectors = 2 * Tile::kSteps * (Tile::kDim / 32);  // per thread
  static constexpr int kVectors = kKeyVectors + Tile::kSteps * (Tile::kDim / 16);
  static constexpr int kStride = Tile::kDim + 4;  // rows begin in different banks
  // The memory of a warp: first its keys and values, then its result.
  union Part {
    uint4 fetched[kVectors][32];
    float out[Tile::kRows][kStride];
  };
  Part part[Tile::kWarps];
  // The sums of a row are relative to the warp's highest score in that row.
  float top[Tile::kWarps][Tile::kRows], sum[Tile::kWarps][Tile::kRows];
};

template <class Tile>
struct SplitWarp {
  using T = typename Tile::T;
  static constexpr int kDim = Tile::kDim, kSteps = Tile::kSteps, kHalves = kDim / 64;

  uint4 (&fetched)[SplitMemory<Tile>::kVectors][32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const T *query_row[2], *key_row[2 * kSteps], *value_row[4 * kSteps];
  uint32_t query[kDim / 16][4];
  float score[2 * kSteps][4] = {}, out[kHalves][8][4] = {};
  float top[2], sum[2] = {0.0f, 0.0f};

  // Computes the addresses of this lane's rows, before the inputs are available.
  __device__ __forceinline__ void aim(const T* queries, const T* keys, const T* values,
                                      const AttentionShape& shape) {
#pragma unroll
    for (int i = 0; i < 2; ++i) query_row[i] = queries + (i * 8 + g) * shape.q_stride + t * 8;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) key_row[i] = keys + (i * 8 + g) * shape.k_stride + t * 8;
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i)
      value_row[i] = values + value_of(i) * shape.v_stride + g * 8;
  }
  // Does what wait_for_inputs() does, after the addresses have been computed: the assembler would
  // move code that needs no inputs below a plain wait. This wait is conditional on the addresses
  // being even, which they always are, but the assembler cannot know that.
  __device__ __forceinline__ void wait() {
    uintptr_t bits = 0;
    for (const T* row : query_row) bits |= reinterpret_cast<uintptr_t>(row);
    for (const T* row : key_row) bits |= reinterpret_cast<uintptr_t>(row);
    for (const T* row : value_row) bits |= reinterpret_cast<uintptr_t>(row);
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred even;\n"
        "setp.eq.u32 even, %0, 0;\n"
        "@even griddepcontrol.wait;\n"
        "}" ::"r"(static_cast<uint32_t>(bits) & 1)
        : "memory");
#endif
  }
  __device__ __forceinline__ int value_of(int i) const {
    return i / 4 * 16 + i / 2 % 2 * 8 + 2 * t + i % 2;
  }

  // Fetches `rows` queries and `count` keys and values, with zeros for rows beyond.
  __device__ __forceinline__ void fetch(int rows, int count) {
    const auto copy = [&](int vector, const T* from, bool wanted) {
      copy_16(shared_address(&fetched[vector][lane]), from, wanted);
    };
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        copy(j * 2 * kSteps + i, key_row[i] + j * 32, i * 8 + g < count);
      }
    }
    end_copies();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        const uint4 q = load_chunk(query_row[half], j * 32, half * 8 + g < rows ? kDim : 0, true);
        query[2 * j][half] = q.x;
        query[2 * j][2 + half] = q.y;
        query[2 * j + 1][half] = q.z;
        query[2 * j + 1][2 + half] = q.w;
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) {
        copy(SplitMemory<Tile>::kKeyVectors + h * 4 * kSteps + i, value_row[i] + h * 64,
             value_of(i) < count);
      }
    }
    end_copies();
  }

  // Computes the scores of `count` keys and replaces them by weights 2^((score - top) * factor).
  __device__ __forceinline__ void weigh(int count, float factor) {
    wait_copies<1>();
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      uint4 key[2 * kSteps];
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) key[n] = fetched[j * 2 * kSteps + n][lane];
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        multiply_add<T>(score[n], query[2 * j], key[n].x, key[n].y);
      }
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        multiply_add<T>(score[n], query[2 * j + 1], key[n].z, key[n].w);
      }
    }
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + 2 * t + i % 2 >= count) score[n][i] = -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], score[n][i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(kWholeWarp, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(kWholeWarp, top[half], 2)) * factor;
    }
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = fast_exp2(fmaf(score[n][i], factor, -top[i / 2]));
        sum[i / 2] += score[n][i];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(kWholeWarp, sum[half], 1);
      sum[half] += __shfl_xor_sync(kWholeWarp, sum[half], 2);
    }
  }

  // Returns the elements of column `m` (of the 8 in a vector) of two adjacent rows a and b, packed.
  __device__ __forceinline__ static uint32_t pair(const uint4& a, const uint4& b, int m) {
    const uint32_t* x = &a.x;
    const uint32_t* y = &b.x;
    return __byte_perm(x[m / 2], y[m / 2], m % 2 ? 0x7632 : 0x5410);
  }

  __device__ __forceinline__ void multiply_values() {
    wait_copies<0>();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const float* low = score[2 * s];
      const float* high = score[2 * s + 1];
      const uint32_t a[4] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]),
                             pack<T>(high[0], high[1]), pack<T>(high[2], high[3])};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const auto* from = &fetched[SplitMemory<Tile>::kKeyVectors + (h * kSteps + s) * 4];
        uint4 value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = from[i][lane];
#pragma unroll
        for (int m = 0; m < 8; ++m) {
          multiply_add<T>(out[h][m], a, pair(value[0], value[1], m), pair(value[2], value[3], m));
        }
      }
    }
  }

  __device__ __forceinline__ void show(SplitMemory<Tile>& memory, int warp) const {
    __syncwarp();  // until all lanes have read their values
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + g;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        float* to = memory.part[warp].out[row] + h * 64 + t * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // columns 4 i of the thread's 16
          const int column = i / 2 + 2 * half, m = i % 2 * 4;
          *reinterpret_cast<float4*>(to + 4 * i) = {out[h][m][column], out[h][m + 1][column],
                                                    out[h][m + 2][column], out[h][m + 3][column]};
        }
      }
      if (t == 0) {
        memory.top[warp][row] = top[half];
        memory.sum[warp][row] = sum[half];
      }
    }
  }
};

// Combines the results of `warps` warps and stores `rows` rows, 16 bytes per thread.
template <class Tile, class T>
__device__ __forceinline__ void add_up(const SplitMemory<Tile>& memory, int warps, T* out, int rows,
                                       int64_t stride) {
  constexpr int kChunks = Tile::kDim / 8;
#pragma unroll
  for (int i = threadIdx.x; i < Tile::kRows * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    float top = -INFINITY, sum = 0.0f, total[8] = {};
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      if (w < warps) top = fmaxf(top, memory.top[w][row]);
    }
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      if (w >= warps) break;
      const float weight = fast_exp2(memory.top[w][row] - top);
      sum = fmaf(memory.sum[w][row], weight, sum);
      float part[8];
      *reinterpret_cast<float4*>(part) =
          *reinterpret_cast<const float4*>(&memory.part[w].out[row][column]);
      *reinterpret_cast<float4*>(part + 4) =
          *reinterpret_cast<const float4*>(&memory.part[w].out[row][column + 4]);
#pragma unroll
      for (int c = 0; c < 8; ++c) total[c] = fmaf(part[c], weight, total[c]);
    }
    const float inverse = __fdividef(1.0f, sum);
    uint4 words;
    words.x = pack<T>(total[0] * inverse, total[1] * inverse);
    words.y = pack<T>(total[2] * inverse, total[3] * inverse);
    words.z = pack<T>(total[4] * inverse, total[5] * inverse);
    words.w = pack<T>(total[6] * inverse, total[7] * inverse);
    if (row < rows) *reinterpret_cast<uint4*>(out + row * stride + column) = words;
  }
}

}  // namespace fusewire::cuda
