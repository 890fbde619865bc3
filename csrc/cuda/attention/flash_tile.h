// One shape of the attention kernel of flash_kernel.h: sizes of its tiles, and how they lie in
// shared memory and registers.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/element.h"
#include "cuda/mma.h"

namespace fusewire::cuda {

// What a kernel is compiled for: everything (any alignment, mask, bias, cap, keys of their own,
// width up to kDim); that with dropout of weights; only aligned rows of exactly kDim that are plain
// (attention.h); these with log_sum_exp; and these with no sequence longer than kKeys, when one
// pass does and the softmax needs no running sums.
enum class FlashMode { kGeneral, kDropping, kPlain, kSaving, kOnce };

// kWarps warps own 16 * kRowTiles queries each; keys and values pass by kKeys at a time, up to
// kStages tiles in flight. kDim is the width of a head. A multiprocessor should hold kBlocks
// blocks.
template <class Element, int dim, int warps, int row_tiles, int keys, int blocks, FlashMode mode>
struct FlashTile {
  static_assert(dim % 16 == 0 && keys % 32 == 0);
  using T = Element;
  static constexpr int kDim = dim, kWarps = warps, kRowTiles = row_tiles, kKeys = keys;
  static constexpr int kBlocks = blocks;
  static constexpr bool kOnce = mode == FlashMode::kOnce;
  static constexpr bool kPlain = kOnce || mode == FlashMode::kPlain || mode == FlashMode::kSaving;
  static constexpr bool kSaves = !kPlain || mode == FlashMode::kSaving;  // log_sum_exp
  static constexpr bool kDrops = mode == FlashMode::kDropping;
  static constexpr int kStages = kOnce ? 1 : 3;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kChunks = kDim / 8;          // of 16 bytes in a row
  static constexpr int kPairs = kDim / 32;          // of 16 columns, read 16 bytes a thread
  static constexpr bool kOdd = kDim % 32 != 0;      // 16 more columns, read 8 bytes a thread
  static constexpr bool kWhole = kChunks % 8 == 0;  // rows are whole 128-byte lines

  // A quarter of a warp reads keys as two rows of 64 bytes and values as eight rows of 16 bytes
  // (ldmatrix): they must not meet in a bank. Whole lines are swizzled for that, others padded.
  static constexpr int kKeyStride = kWhole ? kDim * 2 : (kChunks + 3) / 8 * 128 + 64;
  static constexpr int kValueStride = kWhole ? kDim * 2 : (kChunks | 1) * 16;
  static constexpr int kKeyBytes = kKeys * kKeyStride;
  // A tile can need kRows + kKeys - 1 floats of the bias.
  static constexpr int kBias = kPlain ? 0 : kRows + kKeys;
  static constexpr int kBiasAt = kKeyBytes + kKeys * kValueStride;
  static constexpr int kStageBytes = kBiasAt + kBias * 4;

  __device__ __forceinline__ static int key_offset(int row, int chunk) {
    return row * kKeyStride + (kWhole ? chunk ^ (row & 1) * 4 : chunk) * 16;
  }
  __device__ __forceinline__ static int value_offset(int row, int chunk) {
    return row * kValueStride + (kWhole ? chunk ^ (row & 7) : chunk) * 16;
  }
  // The same for the row and first chunk of a lane, then a row and chunk further on: `rows` is a
  // multiple of 8, `chunks` of 4 for keys and 2 for values, so the swizzle stays a constant.
  __device__ __forceinline__ static uint32_t key_at(uint32_t lane, int rows, int chunks) {
    return swizzled(lane, chunks) + rows * kKeyStride;
  }
  __device__ __forceinline__ static uint32_t value_at(uint32_t lane, int rows, int chunks) {
    return swizzled(lane, chunks) + rows * kValueStride;
  }
  // Operands of the products from there: of 8 keys and 32 columns, of 16 values and 16 columns.
  __device__ __forceinline__ static uint4 load_keys(uint32_t address) {
    return load_shared_16(address);
  }
  __device__ __forceinline__ static uint4 load_values(uint32_t address) {
    return load_transposed(address);
  }

 private:
  __device__ __forceinline__ static uint32_t swizzled(uint32_t lane, int chunks) {
    return kWhole ? (lane ^ chunks % 8 * 16) + chunks / 8 * 128 : lane + chunks * 16;
  }
};

// 8 values of a row from column `column` on, zeros beyond `width`; one load if `vectors`.
template <class T>
__device__ __forceinline__ uint4 load_chunk(const T* row, int column, int width, bool vectors) {
  if (vectors) {
    return column < width ? *reinterpret_cast<const uint4*>(row + column) : uint4{0, 0, 0, 0};
  }
  Vector<T> chunk;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    chunk.at[i] = column + i < width ? row[column + i] : from_float<T>(0.0f);
  }
  return *reinterpret_cast<const uint4*>(&chunk);
}

template <class T>
__device__ __forceinline__ void store_chunk(T* row, int column, int width, bool vectors,
                                            const uint4& values) {
  if (vectors) {
    if (column < width) *reinterpret_cast<uint4*>(row + column) = values;
    return;
  }
  const Vector<T> chunk = *reinterpret_cast<const Vector<T>*>(&values);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < width) row[column + i] = chunk.at[i];
  }
}

// Register i of lane t of each quad becomes register t of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
#pragma unroll
  for (int bit = 2; bit >= 1; bit /= 2) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + bit], bit);
      if (upper)
        w[i] = got;
      else
        w[i + bit] = got;
    }
  }
}

}  // namespace fusewire::cuda
