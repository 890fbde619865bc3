// Hopper's tensor memory accelerator (TMA): copies boxes of a matrix between device memory and
// shared memory (PTX ISA, "cp.async.bulk.tensor"; CUDA driver API, "Tensor Map Object Management").
//
// The host encodes a matrix_map() for each call and passes it to the kernel by value, as a
// parameter `const __grid_constant__ CUtensorMap`. Boxes may extend beyond the edges of the matrix:
// loads fill the outside with zeros, stores skip it. Maps of matrices use the 128-byte swizzle: a
// box is at most 128 bytes wide, its destination in shared memory is aligned to 1024 bytes, and the
// 16-byte chunk c of row r is at byte 128 r + 16 (c ^ r % 8). With the 64-byte swizzle boxes are 64
// bytes wide, and the chunk is at byte 64 r + 16 (c ^ r / 2 % 4).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.h"
#include "cuda/launch.h"
#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

// Returns the map of a matrix [rows, columns] of 2-byte elements, or of bytes if dtype is kUInt8,
// with rows `stride` elements apart, for boxes of box_rows x box_columns (each at most 256). `data`
// and every row must be aligned to 16 bytes.
inline CUtensorMap matrix_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_rows, int box_columns,
                              CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B);

// Returns the map of a matrix as matrix_map() does, whose rows are two halves of `rows` / 2 each, a
// multiple of 8. A box has box_groups groups of 8 rows of the first half, each followed by the same
// rows of the second half.
inline CUtensorMap halves_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_groups, int box_columns);

// Returns the map of a dense matrix of 4-byte words. Its boxes are not swizzled; their destinations
// are aligned to 128 bytes.
inline CUtensorMap words_map(const void* data, int64_t rows, int64_t columns, int box_rows,
                             int box_columns);

__device__ __forceinline__ void map_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts a load of the box whose first element is (row, column) into `to`. One thread calls it.
// `barrier` counts the bytes of a whole box, including the part beyond the edges.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, int row, int column,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// Starts a load of a box of a halves_map().
__device__ __forceinline__ void tma_load_groups(void* to, const CUtensorMap* map, int group,
                                                int column, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %5, %5, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(group), "r"(0)
      : "memory");
}

// Starts the load of tma_load() for every block of the cluster whose bit is set in `blocks`: each
// receives the box at the same address in its own shared memory, and counts the bytes at its own
// barrier.
__device__ __forceinline__ void tma_load_multicast(void* to, const CUtensorMap* map, int row,
                                                   int column, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}

// Starts a load of `bytes` contiguous bytes, without a map. Addresses and `bytes` are multiples of
// 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Starts a store of a box from `from`. One thread calls it, after the writers of `from` have called
// fence_async_shared() and met at a barrier. The same thread calls tma_store_commit() and
// tma_store_wait() before `from` is overwritten.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, int row, int column,
                                          const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the last kPending committed groups have been read from shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Returns the driver's cuTensorMapEncodeTiled. The runtime looks it up, so libcuda need not be
// linked.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess) {
      fail("cuTensorMapEncodeTiled: not found in the driver, wanted one for CUDA 12.0 or later");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// A dimension of a tensor: its size, that of a box, and the bytes from one index to the next.
struct MapDimension {
  int64_t size;
  int box;
  int64_t stride_bytes = 0;  // not of the first, whose elements are contiguous
};

template <size_t kRank>
CUtensorMap encoded_map(CUtensorMapDataType type, CUtensorMapSwizzle swizzle, const void* data,
                        const MapDimension (&dimensions)[kRank]) {
  CUtensorMap map;
  cuuint64_t sizes[kRank], strides[kRank];
  cuuint32_t box[kRank], element_strides[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(dimensions[i].size);
    strides[i] = static_cast<cuuint64_t>(dimensions[i].stride_bytes);
    box[i] = static_cast<cuuint32_t>(dimensions[i].box);
    element_strides[i] = 1;
  }
  const CUresult status =
      tensor_map_encoder()(&map, type, kRank, const_cast<void*>(data), sizes, strides + 1, box,
                           element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail("tensor map: got status ", static_cast<int>(status), " for ", dimensions[1].size,
         " rows of ", dimensions[0].size, ", stride of ", dimensions[1].stride_bytes,
         " bytes, box ", dimensions[1].box, " x ", dimensions[0].box,
         "; wanted 16-byte aligned rows and boxes up to 256");
  }
  return map;
}

inline CUtensorMapDataType map_type(DType dtype) {
  return dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : dtype == DType::kUInt8  ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

inline CUtensorMap matrix_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_rows, int box_columns,
                              CUtensorMapSwizzle swizzle) {
  const int64_t row_bytes = stride * static_cast<int64_t>(size_of(dtype));
  return encoded_map(map_type(dtype), swizzle, data,
                     {{columns, box_columns}, {rows, box_rows, row_bytes}});
}

inline CUtensorMap halves_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_groups, int box_columns) {
  const int64_t row_bytes = stride * static_cast<int64_t>(size_of(dtype));
  return encoded_map(map_type(dtype), CU_TENSOR_MAP_SWIZZLE_128B, data,
                     {{columns, box_columns},
                      {8, 8, row_bytes},
                      {2, 2, rows / 2 * row_bytes},
                      {rows / 16, box_groups, 8 * row_bytes}});
}

inline CUtensorMap words_map(const void* data, int64_t rows, int64_t columns, int box_rows,
                             int box_columns) {
  return encoded_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_SWIZZLE_NONE, data,
                     {{columns, box_columns}, {rows, box_rows, columns * 4}});
}

}  // namespace fusewire::cuda::sm90
