// What the attention kernels of training on Hopper share. A block is one warpgroup, owns 64 rows of
// a head and loops over tiles of 64 rows of the other side, which TMA loads. Products are wgmma,
// and the softmax leaves their factors in registers. Several blocks per multiprocessor hide one
// another's softmax.
//
// Rows of a tile beyond the end of the sequence belong to the next sequence, or are padding with
// arbitrary contents, NaN included. In tiles of the other side they are set to zero in shared
// memory before any product reads them. Own rows of this kind affect only their own results, which
// are not stored.
#pragma once

#include <cuda.h>

#include "cuda/attention/attention.h"
#include "cuda/attention/sm90_attend.h"
#include "cuda/sm90_tma.h"

namespace fusewire::cuda::sm90 {

// The configuration for head_dim = kDim. kStages - 1 tiles are fetched ahead, and kBlocks blocks
// should fit on a multiprocessor. Matrices in shared memory are [kDim / 64][64][64] with TMA's
// swizzle.
template <class Element, int dim, int depth, int blocks>
struct RowsTile {
  static_assert(dim % 64 == 0);
  using T = Element;
  static constexpr int kDim = dim, kStages = depth, kBlocks = blocks;
  static constexpr int kOwn = 64, kOther = 64, kThreads = 128;
  static constexpr int kChunks = kDim / 8;  // chunks of 16 bytes per row
  static constexpr int kMaskBytes = kOwn * kOther / kDropoutGroup;

  struct Stage {
    T first[kOther * kDim];   // q or k
    T second[kOther * kDim];  // dout or v
  };
};

// Return whether these kernels can read the rows, and support the shape: no bias and no cap.
inline bool rows_fit(const HeadRows& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 8 == 0;
}
inline bool shape_fits(const AttentionArguments& a) {
  return hopper() && (a.head_dim == 64 || a.head_dim == 128) && !a.bias && a.soft_cap <= 0 &&
         rows_fit(a.q) && rows_fit(a.k) && rows_fit(a.v) && rows_fit(HeadRows{a.out, a.out_stride});
}

// Returns the tensor map of rows of heads, in boxes of 64 rows and 64 columns.
inline CUtensorMap rows_map(DType dtype, const HeadRows& rows, int64_t count, int64_t heads,
                            int64_t head_dim) {
  return matrix_map(dtype, rows.data, count, heads * head_dim, rows.stride, 64, 64);
}

// Starts loading 64 rows of a head. One thread calls it.
template <int kDim, class T>
__device__ __forceinline__ void load_rows(T* to, const CUtensorMap* map, int row, int column,
                                          uint64_t* full) {
#pragma unroll
  for (int half = 0; half < kDim / 64; ++half) {
    tma_load(to + half * 64 * 64, map, row, column + half * 64, full);
  }
}

// Sets the rows of a stage from `rows` on to zero. All threads call it.
template <class Tile>
__device__ __forceinline__ void clear_rows(typename Tile::Stage& stage, int rows) {
#pragma unroll
  for (int half = 0; half < Tile::kDim / 64; ++half) {
    for (int i = rows * 8 + threadIdx.x; i < Tile::kOther * 8; i += Tile::kThreads) {
      reinterpret_cast<uint4*>(stage.first + half * 64 * 64)[i] = {};
      reinterpret_cast<uint4*>(stage.second + half * 64 * 64)[i] = {};
    }
  }
  fence_async_shared();
  __syncthreads();
}

// Issues sum = own . other^T for 64 rows each, without waiting for it.
template <class Tile>
__device__ __forceinline__ void multiply_rows(float (&sum)[Tile::kOther / 2],
                                              const typename Tile::T* own,
                                              const typename Tile::T* other) {
  const uint64_t a = k_major_descriptor(own), b = k_major_descriptor(other);
#pragma unroll
  for (int d = 0; d < Tile::kDim / 16; ++d) {
    wgmma<Tile::kOther, typename Tile::T>(sum, a + d / 4 * (64 * 128 / 16) + d % 4 * 2,
                                          b + d / 4 * (64 * 128 / 16) + d % 4 * 2, d > 0);
  }
}

// Issues sum += factors . other for 64 rows and kDim columns, without waiting for it.
template <class Tile>
__device__ __forceinline__ void add_rows(float (&sum)[Tile::kDim / 2],
                                         const uint32_t (&factors)[Tile::kOther / 16][4],
                                         const typename Tile::T* other) {
  const uint64_t b = n_major_descriptor(other, 64 * 128);
#pragma unroll
  for (int j = 0; j < Tile::kOther / 16; ++j) {
    wgmma<Tile::kDim, typename Tile::T, true>(sum, factors[j], b + j * 128, true);
  }
}

// Returns which keys of a tile the dropout mask keeps for a row of queries. Bit 8 n % 32 + i of a
// word is the i-th of this lane's two keys in the n-th group of 8 keys; the first four groups are
// in x, the others in y.
__device__ __forceinline__ uint2 kept_keys(const uint8_t* mask, int row) {
  const uint2 words = load_shared_8(shared_address(mask + row * (64 / kDropoutGroup)));
  const int pair = threadIdx.x % 4 * 2;
  return {words.x >> pair, words.y >> pair};
}
__device__ __forceinline__ bool keeps(const uint2& words, int n, int i) {
  return (n < 4 ? words.x : words.y) & 1u << (n % 4 * 8 + i);
}

template <class T, int kSize>
__device__ __forceinline__ void pack_factors(uint32_t (&to)[kSize / 8][4],
                                             const float (&from)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize / 2; ++i) to[i / 4][i % 4] = pack<T>(from[2 * i], from[2 * i + 1]);
}

}  // namespace fusewire::cuda::sm90
