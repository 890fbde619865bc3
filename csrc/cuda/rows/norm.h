// Normalises a row that registers hold, or one that is too wide for them.
#pragma once

#include "cuda/rows/row.h"

namespace fusewire::cuda {

// Returns 1 / sqrt(variance + eps) for deviations of mean square `square` and mean `left`. Rounding
// may make the variance of a constant row negative, which counts as 0; a NaN stays NaN.
__device__ __forceinline__ float row_scale(float square, float left, float eps) {
  const float variance = square - left * left;
  return rsqrtf((variance < 0.0f ? 0.0f : variance) + eps);
}

// Computes v = (v - mean) / sqrt(variance + eps), or v / sqrt(mean(v^2) + eps) unless `centered`.
// Elements beyond the row are 0 on entry.
//
// This takes two passes over the registers. For fp32 the second pass also sums the deviations:
// their mean is the rounding error of the first mean, and is subtracted too, so that a mean of 1e4
// with a deviation of 0.1 costs no precision. 16-bit elements cannot represent such rows.
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
    __syncthreads();  // for the barrier that the reduction would have: see kSlot
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
// stream began, so they are loaded before the inputs are waited for.
template <class T, class L>
struct Affine {
  RowPacks<L, T> weight, bias;

  __device__ __forceinline__ void load(const void* weights, const void* biases, int cols) {
    load_row<L>(weight, static_cast<const T*>(weights), cols, 0.0f);
    // No bias is read as a row of no columns: all zeros.
    load_row<L>(bias, static_cast<const T*>(biases), biases ? cols : 0, 0.0f);
  }
  // Keeps the compiler from converting them to fp32 as soon as they are loaded, which would take
  // twice the registers.
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

// As Affine, but loads the weights last, from the caches, a vector at a time: for rows that leave
// no registers for them.
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

// Normalises a row that does not fit in registers: the block reads it three times, from the caches
// after the first. read(v, column) reads the columns of one vector, as for_vectors() divides the
// row `like` of the input into vectors.
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
