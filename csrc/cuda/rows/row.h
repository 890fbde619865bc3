// A row of a matrix in the registers of the threads that share it, so that memory is read once
// however often the arithmetic goes over the row; and the walk over rows that are too wide for
// that.
#pragma once

#include <cstdint>

#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

// kWidth neighbouring elements, moved by one instruction.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T at[kWidth];
};

// Thread t of a row's kThreads threads holds the elements t * kWidth + [0, kWidth) and those
// kThreads * kWidth further on, kCount times. A warp keeps a row to itself where it can: its
// reductions need no barrier, and four rows share a block (the device starts blocks too slowly
// for fewer). Otherwise a block has one row.
template <int width, int count, int threads>
struct RowLayout {
  static constexpr int kWidth = width, kCount = count, kThreads = threads;
  static constexpr int kElements = kWidth * kCount;       // of a thread
  static constexpr int kRows = threads == kWarp ? 4 : 1;  // of a block
  static constexpr int kBlock = threads * kRows;
  // Bounds a thread's registers to 128, or 168 where 32 elements are not packed in pairs: they, a
  // residual, the weight and the bias take that many. Vectors of 16-bit elements need no more than
  // 96, or 64 for up to 24 elements: the fewer, the more rows are under way.
  static constexpr int kWarpsPerSm = kElements <= 16   ? 16
                                     : kWidth < 8      ? 12
                                     : kBlock > 128    ? 16
                                     : kElements <= 24 ? 32
                                                       : 20;
  static constexpr int kBlocksPerSm = kBlock <= 256 ? kWarpsPerSm * kWarp / kBlock : 1;

  __device__ __forceinline__ static int column(int i) {
    return (threadIdx.x % kThreads + i * kThreads) * kWidth;
  }
  __device__ __forceinline__ static int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  }
  static dim3 grid(int64_t rows) { return dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)); }
};

template <class L, class T>
using RowPacks = Pack<T, L::kWidth>[L::kCount];

// Vectors are moved and widened as words: element by element the compiler takes the halves of a
// register apart, in more instructions than the arithmetic.
template <class T, int kWidth>
constexpr bool kWords = sizeof(T) * kWidth == 16;

template <class T, int kWidth>
__device__ __forceinline__ void widen(const Pack<T, kWidth>& pack, float (&v)[kWidth]) {
  if constexpr (kWords<T, kWidth> && sizeof(T) == 2) {
    const uint4& words = reinterpret_cast<const uint4&>(pack);
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack<T>(pairs[i]);
      v[2 * i] = two.x;
      v[2 * i + 1] = two.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = to_float(pack.at[j]);
  }
}

// Columns beyond the row are left as `fill`.
template <class L, class T>
__device__ __forceinline__ void load_row(RowPacks<L, T>& to, const T* row, int cols, float fill) {
  Pack<T, L::kWidth> filled;
#pragma unroll
  for (int j = 0; j < L::kWidth; ++j) filled.at[j] = from_float<T>(fill);
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    if constexpr (kWords<T, L::kWidth>) {
      uint4 words = reinterpret_cast<const uint4&>(filled);
      if (L::column(i) < cols) words = *reinterpret_cast<const uint4*>(row + L::column(i));
      reinterpret_cast<uint4&>(to[i]) = words;
    } else {
      to[i] = filled;
      if (L::column(i) < cols) {
        to[i] = *reinterpret_cast<const Pack<T, L::kWidth>*>(row + L::column(i));
      }
    }
  }
}

// Element i of the row that `packs` hold, in fp32.
template <class L, class T>
__device__ __forceinline__ float element(const RowPacks<L, T>& packs, int i) {
  if constexpr (kWords<T, L::kWidth> && sizeof(T) == 2) {
    const uint4& words = reinterpret_cast<const uint4&>(packs[i / 8]);
    const int word = i % 8 / 2;
    const float2 two = unpack<T>(word == 0   ? words.x
                                 : word == 1 ? words.y
                                 : word == 2 ? words.z
                                             : words.w);
    return i % 2 ? two.y : two.x;
  } else {
    return to_float(packs[i / L::kWidth].at[i % L::kWidth]);
  }
}

template <class L, class T>
__device__ __forceinline__ void store_row(T* row, const float (&v)[L::kElements], int cols) {
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    Pack<T, L::kWidth> pack;
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) pack.at[j] = from_float<T>(v[i * L::kWidth + j]);
    if (L::column(i) < cols) *reinterpret_cast<Pack<T, L::kWidth>*>(row + L::column(i)) = pack;
  }
}

// Four chains of operations instead of one: shorter, and for sums more precise.
template <int kElements, class Operation>
__device__ __forceinline__ float reduce_thread(const float (&v)[kElements], Operation operation) {
  float chains[4] = {v[0], v[1], v[2], v[3]};
#pragma unroll
  for (int i = 4; i < kElements; ++i) chains[i % 4] = operation(chains[i % 4], v[i]);
  return operation(operation(chains[0], chains[1]), operation(chains[2], chains[3]));
}

// Calls body(layout) for the first of Layouts that holds rows of `cols` elements; false where none
// does.
template <class... Layouts, class Body>
bool with_first_layout(int64_t cols, Body&& body) {
  const auto fits = [&](auto layout) {
    using L = decltype(layout);
    if (cols > L::kElements * L::kThreads) return false;
    body(layout);
    return true;
  };
  return (fits(Layouts{}) || ...);
}

// The layouts of whole rows as vectors.
template <class T, class Body>
bool with_vector_layout(int64_t cols, Body&& body) {
  constexpr int n = Vector<T>::kSize, e = 8 / n;  // e: vectors that hold 8 elements
  return with_first_layout<RowLayout<n, e, 32>, RowLayout<n, 2 * e, 32>, RowLayout<n, 3 * e, 32>,
                           RowLayout<n, 4 * e, 32>, RowLayout<n, 2 * e, 128>,
                           RowLayout<n, 3 * e, 128>, RowLayout<n, 4 * e, 128>,
                           RowLayout<n, 4 * e, 512>>(cols, body);
}

// The layouts of whole rows, as vectors or one by one.
template <class T, class Body>
bool with_row_layout(int64_t cols, bool vectors, Body&& body) {
  if (vectors) return with_vector_layout<T>(cols, body);
  return with_first_layout<RowLayout<1, 8, 32>, RowLayout<1, 32, 32>, RowLayout<1, 32, 128>>(cols,
                                                                                             body);
}

// Wide rows -------------------------------------------------------------------------------------

constexpr int kWideBlock = 512;  // threads, for one row

// Calls body(column) with the first of Vector<T>::kSize columns for a row shared by the block.
// Vectors begin where `row` is aligned, so the first one may begin before column 0 and the last one
// end beyond the row: read_part and write_part mind that.
template <class T, class Body>
__device__ __forceinline__ void for_vectors(const T* row, int cols, Body&& body) {
  constexpr int n = Vector<T>::kSize;
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  for (int c = threadIdx.x * n - before; c < cols; c += blockDim.x * n) body(c);
}

template <class T>
__device__ __forceinline__ bool whole_vector(const T* row, int c, int cols) {
  return c >= 0 && c + Vector<T>::kSize <= cols && reinterpret_cast<uintptr_t>(row + c) % 16 == 0;
}

template <class T>
__device__ __forceinline__ void read_part(float (&v)[Vector<T>::kSize], const T* row, int c,
                                          int cols, float fill) {
  constexpr int n = Vector<T>::kSize;
  if (whole_vector(row, c, cols)) {
    const Vector<T> whole = Vector<T>::load(row + c);
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = to_float(whole.at[j]);
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      v[j] = c + j >= 0 && c + j < cols ? to_float(row[c + j]) : fill;
    }
  }
}

template <class T>
__device__ __forceinline__ void write_part(T* row, const float (&v)[Vector<T>::kSize], int c,
                                           int cols) {
  constexpr int n = Vector<T>::kSize;
  if (whole_vector(row, c, cols)) {
    Vector<T> whole;
#pragma unroll
    for (int j = 0; j < n; ++j) whole.at[j] = from_float<T>(v[j]);
    whole.store(row + c);
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      if (c + j >= 0 && c + j < cols) row[c + j] = from_float<T>(v[j]);
    }
  }
}

// for_vectors that reads them: body(column, v) with `fill` beyond the row. kTogether loads are in
// flight; the few vectors at the ends go one by one.
template <int kTogether, class T, class Body>
__device__ __forceinline__ void for_values(const T* row, int cols, float fill, Body&& body) {
  constexpr int n = Vector<T>::kSize;
  const int step = blockDim.x * n;
  const auto one = [&](int c) {
    float v[n];
    read_part(v, row, c, cols, fill);
    body(c, v);
  };
  int c = threadIdx.x * n - static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  if (c < 0) {
    one(c);
    c += step;
  }
  for (; c + (kTogether - 1) * step + n <= cols; c += kTogether * step) {
    Vector<T> vectors[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) vectors[i] = Vector<T>::load(row + c + i * step);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float v[n];
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = to_float(vectors[i].at[j]);
      body(c + i * step, v);
    }
  }
  for (; c < cols; c += step) one(c);
}

}  // namespace fusewire::cuda
