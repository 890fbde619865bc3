// The shared memory of a block of flash_backward.cu, and the copies that fill it.
#pragma once

#include "cuda/attention/tiled_work.h"

namespace fusewire::cuda {

// A block owns 64 rows, 16 per warp: queries (q and dout) or keys (k and v). It loops over the rows
// of the other side in tiles of kOther, two of which are in flight. kDim is the padded head_dim.
template <class Element, int dim, int other>
struct BackwardTile {
  using T = Element;
  static constexpr int kDim = dim, kOwn = 64, kOther = other;
  static constexpr int kWarpRows = 16, kThreads = kOwn / kWarpRows * 32;
  static constexpr int kBlocks = dim <= 64 ? 3 : 2;  // per multiprocessor
  static constexpr int kChunks = kDim / 8;           // chunks of 16 bytes per row
  // ldmatrix reads 16 bytes of each of eight rows, which must be in different banks. Rows that are
  // whole 128-byte lines are swizzled, others are padded.
  static constexpr bool kWhole = kChunks % 8 == 0;
  static constexpr int kStride = kWhole ? kDim * 2 : (kChunks | 1) * 16;
  static constexpr int kOwnBytes = kOwn * kStride, kOtherBytes = kOther * kStride;
  static constexpr int kMaskBytes = kOwn * kOther / kDropoutGroup;

  // The other rows. If they are queries, also the log_sum_exp and the dot of each.
  struct Stage {
    alignas(128) char first[kOtherBytes];   // q or k
    alignas(128) char second[kOtherBytes];  // dout or v
    float log_sum_exp[kOther], dots[kOther];
    // The dropout mask: a byte per query and group of 8 keys, with a bit set for each key kept.
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
  // Returns the shared-memory address that is `rows` rows, a multiple of 8, and `chunks` chunks, an
  // even number, beyond `lane`, the address of the lane's own row and first chunk, 0 or 1.
  __device__ __forceinline__ static uint32_t at(uint32_t lane, int rows, int chunks) {
    return (kWhole ? (lane ^ chunks % 8 * 16) + chunks / 8 * 128 : lane + chunks * 16) +
           rows * kStride;
  }

  // Starts asynchronous copies of kRows rows to shared memory. Only the first `rows` of them exist;
  // the others, and columns beyond head_dim, are filled with zeros. Without `vectors` the copies
  // are synchronous.
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
