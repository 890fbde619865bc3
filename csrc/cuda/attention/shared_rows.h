// Rows of a head in shared memory, and products of 16 rows of a warp with them by mma.sync.
#pragma once

#include "cuda/attention/flash_tile.h"

namespace fusewire::cuda {

// The layout of rows of kDim elements, the padded head_dim, which a block reads in tiles of kOther
// rows.
template <class Element, int dim, int other>
struct SharedRows {
  using T = Element;
  static constexpr int kDim = dim, kOther = other, kThreads = 128;
  static constexpr int kChunks = kDim / 8;  // chunks of 16 bytes per row
  // ldmatrix reads 16 bytes of each of eight rows, which must be in different banks. Rows that are
  // whole 128-byte lines are swizzled, others are padded.
  static constexpr bool kWhole = kChunks % 8 == 0;
  static constexpr int kStride = kWhole ? kDim * 2 : (kChunks | 1) * 16;

  __device__ __forceinline__ static int offset(int row, int chunk) {
    return row * kStride + (kWhole ? chunk ^ (row & 7) : chunk) * 16;
  }
  // Returns the shared-memory address that is `rows` rows, a multiple of 8, and `chunks` chunks, an
  // even number, beyond `lane`, the address of the lane's own row and first chunk, 0 or 1.
  __device__ __forceinline__ static uint32_t at(uint32_t lane, int rows, int chunks) {
    return (kWhole ? (lane ^ chunks % 8 * 16) + chunks / 8 * 128 : lane + chunks * 16) +
           rows * kStride;
  }

  // Starts asynchronous copies of `padded` rows to shared memory. Only the first `rows` of them
  // exist; the others, and columns beyond head_dim, are filled with zeros. Without `vectors` the
  // copies are synchronous.
  __device__ __forceinline__ static void copy_rows(char* to, const T* from, int64_t stride,
                                                   int rows, int padded, int head_dim,
                                                   bool vectors) {
    const uint32_t base = shared_address(to);
#pragma unroll 4
    for (int i = threadIdx.x; i < padded * kChunks; i += kThreads) {
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

// Computes sum += own . other^T for 16 own rows and kOther other rows in shared memory. `own` and
// `other` are the lane's addresses.
template <class Rows>
__device__ __forceinline__ void multiply_rows(float (&sum)[Rows::kOther / 8][4], uint32_t own,
                                              uint32_t other) {
#pragma unroll
  for (int chunk = 0; chunk < Rows::kChunks; chunk += 2) {
    const uint4 rows = load_matrices(Rows::at(own, 0, chunk));
    const uint32_t a[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
    for (int n = 0; n < Rows::kOther / 8; n += 2) {
      const uint4 b = load_matrices(Rows::at(other, n * 8, chunk));
      multiply_add<typename Rows::T>(sum[n], a, b.x, b.y);
      multiply_add<typename Rows::T>(sum[n + 1], a, b.z, b.w);
    }
  }
}

// Computes sum += factors . other for 16 rows of the block's own and kDim columns.
template <class Rows>
__device__ __forceinline__ void add_rows(float (&sum)[Rows::kChunks][4],
                                         const float (&factors)[Rows::kOther / 8][4],
                                         uint32_t other) {
  using T = typename Rows::T;
#pragma unroll
  for (int n = 0; n < Rows::kOther / 8; n += 2) {
    const uint32_t a[4] = {pack<T>(factors[n][0], factors[n][1]),
                           pack<T>(factors[n][2], factors[n][3]),
                           pack<T>(factors[n + 1][0], factors[n + 1][1]),
                           pack<T>(factors[n + 1][2], factors[n + 1][3])};
#pragma unroll
    for (int chunk = 0; chunk < Rows::kChunks; chunk += 2) {
      const uint4 b = load_transposed(Rows::at(other, n * 8, chunk));
      multiply_add<T>(sum[chunk], a, b.x, b.y);
      multiply_add<T>(sum[chunk + 1], a, b.z, b.w);
    }
  }
}

// Stores the warp's 16 rows rounded to T: lanes multiply their rows g and g + 8 by scale[0] and
// [1]. Only the first `rows` rows exist in memory.
template <class Rows>
__device__ __forceinline__ void store_rows(const float (&sum)[Rows::kChunks][4],
                                           typename Rows::T* to, int64_t stride, int rows,
                                           int head_dim, const float (&scale)[2], bool vectors) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + g;
#pragma unroll
    for (int c = 0; c < Rows::kChunks; c += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = sum[c + i] + 2 * half;
        w[i] = pack<typename Rows::T>(pair[0] * scale[half], pair[1] * scale[half]);
      }
      transpose_quad(w);
      store_chunk(to + row * stride, (c + t) * 8, row < rows ? head_dim : 0, vectors,
                  {w[0], w[1], w[2], w[3]});
    }
  }
}

}  // namespace fusewire::cuda
