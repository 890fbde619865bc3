// Row selection, and the pooling of each sequence into one row.
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

// A block pools 8 vectors of columns of one sequence: 128 bytes per row, a cache line. The number
// of threads does not depend on the length of the sequence, so a mean does not depend on what the
// sequence was batched with.
constexpr int kPoolLanes = 8, kPoolRows = 64, kPoolBlock = kPoolLanes * kPoolRows;
constexpr int kPoolWarps = kPoolBlock / kWarp;

// As fmaxf, but returns NaN if either argument is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

template <class T, bool kVectors>
__global__ void __launch_bounds__(kPoolBlock)
    pool_sequences(T* out, int64_t out_stride, const T* x, int64_t x_stride, const int32_t* offsets,
                   int hidden, Pooling pooling) {
  constexpr int n = Vector<T>::kSize;
  constexpr int kColumns = kPoolLanes * n;
  const bool largest = pooling == Pooling::kMax;
  const auto fold = [&](float a, float b) { return largest ? max_or_nan(a, b) : a + b; };
  __shared__ float partial[kPoolWarps][kColumns];
  let_next_start();
  wait_for_inputs();
  int64_t begin = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  const int64_t length = end - begin;
  if (pooling == Pooling::kCls) end = min(end, begin + 1);
  if (pooling == Pooling::kLast) begin = max(begin, end - 1);

  const int lane = threadIdx.x % kPoolLanes;
  const int c = blockIdx.y * kColumns + lane * n;
  float v[n];
#pragma unroll
  for (int j = 0; j < n; ++j) v[j] = largest ? -INFINITY : 0.0f;
  const auto add = [&](const float (&row)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = fold(v[j], row[j]);
  };
  int64_t t = begin + threadIdx.x / kPoolLanes;
  if (kVectors && c < hidden) {
    constexpr int kTogether = 8;  // loads in flight
    for (; t + (kTogether - 1) * kPoolRows < end; t += kTogether * kPoolRows) {
      Vector<T> rows[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        rows[i] = Vector<T>::load(x + (t + i * kPoolRows) * x_stride + c);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        float row[n];
#pragma unroll
        for (int j = 0; j < n; ++j) row[j] = to_float(rows[i].at[j]);
        add(row);
      }
    }
    constexpr int kLast = 4;
    for (; t < end; t += kLast * kPoolRows) {
      Vector<T> rows[kLast];
#pragma unroll
      for (int i = 0; i < kLast; ++i) {
        if (t + i * kPoolRows < end) {
          rows[i] = Vector<T>::load(x + (t + i * kPoolRows) * x_stride + c);
        }
      }
#pragma unroll
      for (int i = 0; i < kLast; ++i) {
        if (t + i * kPoolRows >= end) break;
        float row[n];
#pragma unroll
        for (int j = 0; j < n; ++j) row[j] = to_float(rows[i].at[j]);
        add(row);
      }
    }
  }
#pragma unroll 2
  for (; t < end; t += kPoolRows) {
    float row[n];
    read_part(row, x + t * x_stride, c, hidden, 0.0f);
    add(row);
  }
#pragma unroll
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int distance = kPoolLanes; distance < kWarp; distance *= 2) {
      v[j] = fold(v[j], __shfl_xor_sync(kWholeWarp, v[j], distance));
    }
    if (threadIdx.x % kWarp < kPoolLanes) partial[threadIdx.x / kWarp][lane * n + j] = v[j];
  }
  __syncthreads();
  const int column = blockIdx.y * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || column >= hidden) return;
  float y = partial[0][threadIdx.x];
#pragma unroll
  for (int warp = 1; warp < kPoolWarps; ++warp) y = fold(y, partial[warp][threadIdx.x]);
  if (pooling == Pooling::kMean) y /= static_cast<float>(length);
  // A bucket may have empty sequences.
  out[blockIdx.x * out_stride + column] = from_float<T>(length > 0 ? y : 0.0f);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(256)
    copy_rows(T* out, int64_t out_stride, const T* x, int64_t x_stride, const int64_t* rows,
              int64_t count, int64_t x_rows, int64_t cols) {
  constexpr int kUnroll = 2;
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  for (int64_t row = tile_row(); row < count; row += tile_row_step()) {
    const int64_t from = rows[row];
    const bool known = from >= 0 && from < x_rows;
    P packs[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = tile_access<kUnroll>(i) * kWidth;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) packs[i].at[j] = from_float<T>(NAN);
      if (known && c < cols) packs[i] = *reinterpret_cast<const P*>(x + from * x_stride + c);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = tile_access<kUnroll>(i) * kWidth;
      if (c < cols) *reinterpret_cast<P*>(out + row * out_stride + c) = packs[i];
    }
  }
}

}  // namespace

template <class T>
void pool(void* out, int64_t out_stride, const void* x, int64_t x_stride,
          const SequenceBatch& batch, int64_t hidden, Pooling pooling, const Stream& stream) {
  constexpr int kColumns = kPoolLanes * Vector<T>::kSize;
  const dim3 grid(static_cast<unsigned>(batch.sequences()),
                  static_cast<unsigned>((hidden + kColumns - 1) / kColumns));
  const bool vectors = hidden % Vector<T>::kSize == 0 && vectors_fit<T>(x, x_stride);
  launch(vectors ? pool_sequences<T, true> : pool_sequences<T, false>, grid, kPoolBlock, 0, stream,
         static_cast<T*>(out), out_stride, static_cast<const T*>(x), x_stride,
         batch.device_offsets(), static_cast<int>(hidden), pooling);
}

template <class T>
void gather_rows(void* out, int64_t out_stride, const void* x, int64_t x_stride,
                 const int64_t* rows, int64_t count, int64_t x_rows, int64_t cols,
                 const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<2>(count, cols / kWidth);
    launch(copy_rows<T, kWidth>, tiles.grid, tiles.block, 0, stream, static_cast<T*>(out),
           out_stride, static_cast<const T*>(x), x_stride, rows, count, x_rows, cols);
  };
  if (cols % n == 0 && vectors_fit<T>(x, x_stride) && vectors_fit<T>(out, out_stride)) {
    run(std::integral_constant<int, n>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

#define INSTANTIATE(T)                                                                        \
  template void pool<T>(void*, int64_t, const void*, int64_t, const SequenceBatch&, int64_t,  \
                        Pooling, const Stream&);                                              \
  template void gather_rows<T>(void*, int64_t, const void*, int64_t, const int64_t*, int64_t, \
                               int64_t, int64_t, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
