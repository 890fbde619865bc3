// The tile of paged attention on tensor cores with a float8 cache. Shared memory holds the codes as
// pages do; they are converted to 16-bit elements when they are loaded into registers.
#pragma once

#include "cuda/paged/paged_mma.h"

namespace fusewire::cuda {

// As PagedMmaTile. Rows are padded so that neither access has bank conflicts: a thread reads 8
// bytes of keys, four rows of 32 bytes at a time, and values as eight rows of 16 bytes (ldmatrix).
//
// ldmatrix moves pairs of codes. The first codes of the pairs are columns of one product, the
// second codes columns of the next, so that of 16 columns one product has the even ones and the
// other the odd ones.
template <class Element, int dim, int warps, int teams, int keys, int stages, int blocks>
struct PagedMmaFloat8Tile : FlashTile<Element, dim, warps, 1, keys, blocks, FlashMode::kGeneral> {
  static_assert(dim % 32 == 0);
  using Warp = MmaWarp<PagedMmaFloat8Tile>;
  using Stored = Float8;
  static constexpr int kTeams = teams, kStages = stages, kThreads = 32 * warps * teams;
  static constexpr int kKeyStride = (dim / 32 | 1) * 32, kValueStride = dim + 16;
  static constexpr int kKeyBytes = keys * kKeyStride;
  static constexpr int kStageBytes = kKeyBytes + keys * kValueStride;

  // Return the offset of chunk `chunk`, 16 codes, of a row.
  __device__ __forceinline__ static int key_offset(int row, int chunk) {
    return row * kKeyStride + chunk * 16;
  }
  __device__ __forceinline__ static int value_offset(int row, int chunk) {
    return row * kValueStride + chunk * 16;
  }
  __device__ __forceinline__ static uint32_t key_lane(int lane) {
    return lane / 4 * kKeyStride + lane % 4 * 8;
  }
  __device__ __forceinline__ static uint32_t value_lane(int lane) {
    return lane % 16 * kValueStride;
  }
  // Here `chunks` counts 8 columns each, as the products do.
  __device__ __forceinline__ static uint32_t key_at(uint32_t lane, int rows, int chunks) {
    return lane + rows * kKeyStride + chunks * 8;
  }
  __device__ __forceinline__ static uint32_t value_at(uint32_t lane, int rows, int chunks) {
    return lane + rows * kValueStride + chunks * 8;
  }
  __device__ __forceinline__ static uint4 load_keys(uint32_t address) {
    const uint2 codes = load_shared_8(address);
    const uint2 first = widen_four<Element>(codes.x), second = widen_four<Element>(codes.y);
    return {first.x, first.y, second.x, second.y};
  }
  __device__ __forceinline__ static uint4 load_values(uint32_t address) {
    const uint2 codes = load_transposed_16(address);
    const uint2 low = widen_columns<Element>(codes.x), high = widen_columns<Element>(codes.y);
    return {low.x, high.x, low.y, high.y};
  }
  __device__ __forceinline__ static void put(float* to, int t, float2 even, float2 odd) {
    *reinterpret_cast<float4*>(to + 4 * t) = {even.x, odd.x, even.y, odd.y};
  }

 private:
  // As load_transposed, for two matrices; lanes 0 to 15 pass the addresses of their rows.
  __device__ __forceinline__ static uint2 load_transposed_16(uint32_t address) {
    uint2 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r.x), "=r"(r.y)
                 : "r"(address)
                 : "memory");
    return r;
  }
};

}  // namespace fusewire::cuda
