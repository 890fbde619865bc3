// Normalising a row: one that is held in registers, or one too wide for that.
#pragma once

#include "cuda/rows/row.h"

namespace fusewire::cuda {

// For deviations of mean square `square` and mean `left`. Rounding may leave a constant row less
// than no variance; a NaN stays.
__device__ __forceinline__ float row_scale(float square, float left, float eps) {
  const float variance = square - left * left;
  return rsqrtf((variance < 0.0f ? 0.0f : variance) + eps);
}

// v = (v - mean) / sqrt(variance + eps), or v / sqrt(mean(v^2) + eps) unless `centered`. Elements
// beyond the row are 0 on entry.
//
// Two passes over the registers. For fp32 the second also sums the deviations themselves: what is
// left of them is the rounding error of the mean, which is taken off, so a mean of 1e4 with a
// deviation of 0.1 costs no precision. 16-bit elements are too far apart for such rows.
template <class T, class L>
__device__ __forceinline__ void normalize(float (&v)[L::kElements], int cols, bool centered,
                                          float eps) {
  const float per_column = 1.0f / static_cast<float>(cols);
  if (centered) {
    const float mean = reduce<L::kThreads, 0>(reduce_thread(v, Sum{}), Sum{}) * per_column;
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) {
      if (L::column(i / L::kWidth) < cols) v[i] -= mean;
    }
  } else if constexpr (L::kThreads > kWarp) {
    __syncthreads();  // as the reduction would have: see kSlot
  }
  float squares[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) squares[i] = v[i] * v[i];
  float square = reduce_thread(squares, Sum{}), left = 0.0f;
  if constexpr (sizeof(T) == 4) {
    float sums[2] = {reduce_thread(v, Sum{}), square};
    reduce<L::kThreads, 1>(sums, Sum{});
    if (centered) left = sums[0] * per_column;
    square = sums[1];
  } else {
    square = reduce<L::kThreads, 1>(square, Sum{});
  }
  const float scale = row_scale(square * per_column, left, eps);
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = (v[i] - left) * scale;
}

// The affine part of a norm, for the columns of this thread. Weights were complete before the
// stream began, so they are on their way before the inputs are.
template <class T, class L>
struct Affine {
  RowPacks<L, T> weight, bias;

  __device__ __forceinline__ void load(const void* weights, const void* biases, int cols) {
    load_row<L>(weight, static_cast<const T*>(weights), cols, 0.0f);
    // No bias is a row of no columns: all zeros.
    load_row<L>(bias, static_cast<const T*>(biases), biases ? cols : 0, 0.0f);
  }
  // Keeps the compiler from converting them to fp32 as soon as they come, in twice the registers.
  __device__ __forceinline__ void stay_packed() {
    if constexpr (sizeof(Pack<T, L::kWidth>) == 16) {
#pragma unroll
      for (int i = 0; i < L::kCount; ++i) {
        uint4& w = reinterpret_cast<uint4&>(weight[i]);
        uint4& b = reinterpret_cast<uint4&>(bias[i]);
        asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
        asm volatile("" : "+r"(b.x), "+r"(b.y), "+r"(b.z), "+r"(b.w));
      }
    }
  }
  __device__ __forceinline__ void apply(float (&v)[L::kElements]) const {
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) {
      v[i] = fmaf(v[i], element<L, T>(weight, i), element<L, T>(bias, i));
    }
  }
};

// The same with weights that come last, from the caches, a vector at a time: for rows that have
// left no registers for them.
template <class T, class L>
__device__ __forceinline__ void store_affine_row(T* out, const float (&v)[L::kElements],
                                                 const void* weights, const void* biases,
                                                 int cols) {
  using P = Pack<T, L::kWidth>;
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    if (L::column(i) >= cols) continue;
    P weight = *reinterpret_cast<const P*>(static_cast<const T*>(weights) + L::column(i));
    P bias;
    if (biases) bias = *reinterpret_cast<const P*>(static_cast<const T*>(biases) + L::column(i));
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) {
      weight.at[j] = from_float<T>(
          fmaf(v[i * L::kWidth + j], to_float(weight.at[j]), biases ? to_float(bias.at[j]) : 0.0f));
    }
    *reinterpret_cast<P*>(out + L::column(i)) = weight;
  }
}

template <class T>
__device__ __forceinline__ void add_part(float (&v)[Vector<T>::kSize], const T* row, int c,
                                         int cols) {
  float more[Vector<T>::kSize];
  read_part(more, row, c, cols, 0.0f);
#pragma unroll
  for (int j = 0; j < Vector<T>::kSize; ++j) v[j] += more[j];
}

// For rows that no registers hold: the block reads its row three times, from the caches after the
// first. read(v, column) gives the columns that `like`, a row of the input, has in its vectors.
template <class T, class Read>
__device__ __forceinline__ void normalize_wide_row(T* out, const T* like, const void* weights,
                                                   const void* biases, int cols, bool centered,
                                                   float eps, Read&& read) {
  constexpr int n = Vector<T>::kSize;
  const float per_column = 1.0f / static_cast<float>(cols);
  float mean = 0.0f;
  if (centered) {
    float sum = 0.0f;
    for_vectors(like, cols, [&](int c) {
      float v[n];
      read(v, c);  // 0 beyond the row
#pragma unroll
      for (int j = 0; j < n; ++j) sum += v[j];
    });
    mean = reduce<kWideBlock, 0>(sum, Sum{}) * per_column;
  }
  float sums[2] = {};
  for_vectors(like, cols, [&](int c) {
    float v[n];
    read(v, c);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float deviation = c + j >= 0 && c + j < cols ? v[j] - mean : 0.0f;
      sums[0] += deviation;
      sums[1] += deviation * deviation;
    }
  });
  reduce<kWideBlock, 1>(sums, Sum{});
  const float left = centered ? sums[0] * per_column : 0.0f;
  const float scale = row_scale(sums[1] * per_column, left, eps);
  for_vectors(like, cols, [&](int c) {
    float v[n], weight[n], bias[n] = {};
    read(v, c);
    read_part(weight, static_cast<const T*>(weights), c, cols, 0.0f);
    if (biases) read_part(bias, static_cast<const T*>(biases), c, cols, 0.0f);
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = fmaf((v[j] - mean - left) * scale, weight[j], bias[j]);
    write_part(out, v, c, cols);
  });
}

}  // namespace fusewire::cuda
