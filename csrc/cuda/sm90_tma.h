// Hopper's tensor memory accelerator: copies boxes of a matrix between device and shared memory
// (PTX ISA, "cp.async.bulk.tensor"; CUDA driver API, "Tensor Map Object Management").
//
// A matrix_map() is made on the host for each call and goes to the kernel by value, as a parameter
// `const __grid_constant__ CUtensorMap`. Boxes may reach over the matrix's edges: reads give zeros
// there, writes leave them out. With the swizzle of 128 bytes, which matrices have, a box is at
// most 128 bytes wide, its place in shared memory is aligned to 1024 bytes, and row r's 16-byte
// chunk c lies at 128 r + 16 (c ^ r % 8).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.h"
#include "cuda/launch.h"
#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

// Rows of `columns` elements of 2 bytes, or of kUInt8 one, `stride` elements apart, in boxes of
// box_rows x box_columns (each at most 256). `data` and the rows after it are aligned to 16 bytes.
inline CUtensorMap matrix_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_rows, int box_columns);

// Dense rows of 4-byte words, whose boxes lie as they are: no swizzle, aligned to 128 bytes.
inline CUtensorMap words_map(const void* data, int64_t rows, int64_t columns, int box_rows,
                             int box_columns);

__device__ __forceinline__ void map_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One thread: starts reading the box whose first element is (row, column) to `to`; `barrier` gets
// the bytes of a whole box, the part beyond the edges included.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, int row, int column,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// The same to every block of the cluster whose bit is set in `blocks`: to the same place in its
// shared memory, and the bytes count at its own barrier.
__device__ __forceinline__ void tma_load_multicast(void* to, const CUtensorMap* map, int row,
                                                   int column, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}

// The same of `bytes` in a row, without a map: addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// One thread, after fence_async_shared() by the writers of `from` and a barrier: starts writing the
// box. Before `from` is written again the same thread calls tma_store_commit() and
// tma_store_wait().
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
// Waits until all but the last kPending committed groups have been read out of shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// The driver's function, found through the runtime: no link to libcuda.
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

inline CUtensorMap encoded_map(CUtensorMapDataType type, CUtensorMapSwizzle swizzle,
                               const void* data, int64_t rows, int64_t columns,
                               int64_t stride_bytes, int box_rows, int box_columns) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[] = {1, 1};
  const CUresult status =
      tensor_map_encoder()(&map, type, 2, const_cast<void*>(data), sizes, strides, box,
                           element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail("tensor map: got status ", static_cast<int>(status), " for ", rows, " rows of ", columns,
         ", stride of ", stride_bytes, " bytes, box ", box_rows, " x ", box_columns,
         "; wanted 16-byte aligned rows and boxes up to 256");
  }
  return map;
}

inline CUtensorMap matrix_map(DType dtype, const void* data, int64_t rows, int64_t columns,
                              int64_t stride, int box_rows, int box_columns) {
  return encoded_map(dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                     : dtype == DType::kUInt8  ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                     CU_TENSOR_MAP_SWIZZLE_128B, data, rows, columns,
                     stride * static_cast<int64_t>(size_of(dtype)), box_rows, box_columns);
}

inline CUtensorMap words_map(const void* data, int64_t rows, int64_t columns, int box_rows,
                             int box_columns) {
  return encoded_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_SWIZZLE_NONE, data, rows,
                     columns, columns * 4, box_rows, box_columns);
}

}  // namespace fusewire::cuda::sm90
