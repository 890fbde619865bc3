// One configuration of the attention kernel of flash_kernel.h: the sizes of its tiles and their
// layout in shared memory and registers.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/element.h"
#include "cuda/mma.h"

namespace fusewire::cuda {

// What a kernel is compiled for.
//   kGeneral: any alignment, mask, bias, cap and key sequences, head_dim <= kDim, no dropout.
//   kDropping: as kGeneral, with dropout of the weights.
//   kPlain: only plain attention (attention.h), with aligned rows and head_dim = kDim.
//   kSaving: as kPlain, with log_sum_exp.
//   kOnce: as kPlain, where no sequence is longer than kKeys: a single tile of keys is all, and the
//          softmax needs no running sums.
enum class FlashMode { kGeneral, kDropping, kPlain, kSaving, kOnce };

// Each of kWarps warps owns 16 * kRowTiles queries. The block loops over tiles of kKeys keys and
// values, with up to kStages tiles in flight. kDim is the padded head_dim. kBlocks blocks should
// fit on a multiprocessor.
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
  static constexpr int kChunks = kDim / 8;          // chunks of 16 bytes per row
  static constexpr int kPairs = kDim / 32;          // of 16 columns each, 16 bytes per thread
  static constexpr bool kOdd = kDim % 32 != 0;      // 16 more columns, 8 bytes per thread
  static constexpr bool kWhole = kChunks % 8 == 0;  // rows are whole 128-byte lines

  // A quarter of a warp reads 64 bytes of each of two rows of keys, or (ldmatrix) 16 bytes of each
  // of eight rows of values, which must be in different banks. Rows that are whole 128-byte lines
  // are swizzled, others are padded.
  static constexpr int kKeyStride = kWhole ? kDim * 2 : (kChunks + 3) / 8 * 128 + 64;
  static constexpr int kValueStride = kWhole ? kDim * 2 : (kChunks | 1) * 16;
  static constexpr int kKeyBytes = kKeys * kKeyStride;
  // A tile needs up to kRows + kKeys - 1 floats of the bias.
  static constexpr int kBias = kPlain ? 0 : kRows + kKeys;
  static constexpr int kBiasAt = kKeyBytes + kKeys * kValueStride;
  static constexpr int kStageBytes = kBiasAt + kBias * 4;

  __device__ __forceinline__ static int key_offset(int row, int chunk) {
    return row * kKeyStride + (kWhole ? chunk ^ (row & 1) * 4 : chunk) * 16;
  }
  __device__ __forceinline__ static int value_offset(int row, int chunk) {
    return row * kValueStride + (kWhole ? chunk ^ (row & 7) : chunk) * 16;
  }
  // Return the shared-memory address that is `rows` rows and `chunks` chunks beyond `lane`, the
  // address of the lane's own row and first chunk. `rows` is a multiple of 8, `chunks` of 4 for
  // keys and of 2 for values, so the swizzle stays constant.
  __device__ __forceinline__ static uint32_t key_at(uint32_t lane, int rows, int chunks) {
    return swizzled(lane, chunks) + rows * kKeyStride;
  }
  __device__ __forceinline__ static uint32_t value_at(uint32_t lane, int rows, int chunks) {
    return swizzled(lane, chunks) + rows * kValueStride;
  }
  // Load operands of the products from such an address: 8 keys by 32 columns, or 16 values by 16
  // columns.
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

// Loads 8 elements of a row from column `column` on, zeros from column `width` on; by one load if
// `vectors`.
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

// Transposes registers within each quad: register i of lane t becomes register t of lane i.
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
