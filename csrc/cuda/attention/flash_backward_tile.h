// What a block of flash_backward.cu has in shared memory, and how it gets there.
#pragma once

#include "cuda/attention/tiled_work.h"

namespace fusewire::cuda {

// A block owns 64 rows, 16 a warp: queries (q, dout) or keys (k, v). The others pass by kOther at a
// time, two tiles in flight. kDim is the width of a head.
template <class Element, int dim, int other>
struct BackwardTile {
  using T = Element;
  static constexpr int kDim = dim, kOwn = 64, kOther = other;
  static constexpr int kWarpRows = 16, kThreads = kOwn / kWarpRows * 32;
  static constexpr int kBlocks = dim <= 64 ? 3 : 2;  // of a multiprocessor
  static constexpr int kChunks = kDim / 8;           // of 16 bytes in a row
  // ldmatrix reads eight rows of 16 bytes, which must not meet in a bank: whole 128-byte lines are
  // swizzled for that, others padded.
  static constexpr bool kWhole = kChunks % 8 == 0;
  static constexpr int kStride = kWhole ? kDim * 2 : (kChunks | 1) * 16;
  static constexpr int kOwnBytes = kOwn * kStride, kOtherBytes = kOther * kStride;
  static constexpr int kMaskBytes = kOwn * kOther / kDropoutGroup;

  // The other rows; where they are queries, with their logarithms of sums and dots.
  struct Stage {
    alignas(128) char first[kOtherBytes];   // q or k
    alignas(128) char second[kOtherBytes];  // dout or v
    float log_sum_exp[kOther], dots[kOther];
    // A byte for a query and a group of 8 keys, with a bit for each that is kept.
    uint8_t mask[kMaskBytes];
  };
  struct Memory {
    alignas(128) char first[kOwnBytes];
    alignas(128) char second[kOwnBytes];
    Stage stages[2];
    float log_sum_exp[kOwn], dots[kOwn];
  };

  __device__ __forceinline__ static int offset(int row, int chunk) {
    return row * kStride + (kWhole ? chunk ^ (row & 7) : chunk) * 16;
  }
  // The same for the row and first chunk, 0 or 1, of a lane, then `rows`, a multiple of 8, and
  // `chunks`, an even number, further on.
  __device__ __forceinline__ static uint32_t at(uint32_t lane, int rows, int chunks) {
    return (kWhole ? (lane ^ chunks % 8 * 16) + chunks / 8 * 128 : lane + chunks * 16) +
           rows * kStride;
  }

  // kRows rows to shared memory in the background, of which the first `rows` are there; zeros
  // elsewhere.
  template <int kRows>
  __device__ __forceinline__ static void copy_rows(char* to, const T* from, int64_t stride,
                                                   int rows, int head_dim, bool vectors) {
    const uint32_t base = shared_address(to);
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (vectors) {
        const bool wanted = row < rows && chunk * 8 < head_dim;
        copy_16(base + offset(row, chunk), wanted ? from + row * stride + chunk * 8 : from, wanted);
      } else {
        *reinterpret_cast<uint4*>(to + offset(row, chunk)) =
            load_chunk(from + row * stride, chunk * 8, row < rows ? head_dim : 0, false);
      }
    }
  }
};

}  // namespace fusewire::cuda
