// The steps of sampling a token from a row of logits that the threads of a block share. Nothing is
// sorted, and nothing is kept between passes: weights are recomputed from their logits. The width
// of the row alone decides the order of every sum.
#pragma once

#include "core/bracket.h"
#include "core/kernels.h"
#include "core/philox.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {

constexpr int kDrawThreads = 512;

template <class Operation, int kValues>
__device__ __forceinline__ void reduce_block(float (&x)[kValues], Operation operation) {
  __syncthreads();  // slower warps may still read the partial results of the last reduction
  reduce<kDrawThreads, 0>(x, operation);
}

template <class Operation>
__device__ __forceinline__ float reduce_block(float x, Operation operation) {
  float values[1] = {x};
  reduce_block(values, operation);
  return values[0];
}

// Calls body(value, column) for each of this thread's elements, Vector<T>::kSize adjacent columns
// at a time. Unlike with for_values (row.h), the address of the row changes neither which elements
// these are nor their order: otherwise a draw would depend on the row's index in the batch.
// kTogether vectors are loaded at once; rows that are not aligned are read element by element.
// `blocks` blocks may share the row; `rank` is this one's number among them.
template <int kTogether = 2, class T, class Body>
__device__ __forceinline__ void for_elements(const T* row, int cols, Body&& body, int rank = 0,
                                             int blocks = 1) {
  constexpr int n = Vector<T>::kSize;
  const int step = kDrawThreads * n * blocks;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  int c = (rank * kDrawThreads + threadIdx.x) * n;
  if (aligned) {
    for (; c + (kTogether - 1) * step + n <= cols; c += kTogether * step) {
      Vector<T> vectors[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) vectors[i] = Vector<T>::load(row + c + i * step);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) body(to_float(vectors[i].at[j]), c + i * step + j);
      }
    }
  }
  for (; c < cols; c += step) {
    Vector<T> vector;
    if (aligned && c + n <= cols) {
      vector = Vector<T>::load(row + c);
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j) vector.at[j] = c + j < cols ? row[c + j] : from_float<T>(0.0f);
    }
#pragma unroll
    for (int j = 0; j < n; ++j) {
      if (c + j < cols) body(to_float(vector.at[j]), c + j);
    }
  }
}

// Returns the largest threshold such that the elements whose `number` reaches it have a mass of at
// least `target` (core/bracket.h). number and mass are functions of (value, column). The search
// ends as soon as only one number is left in the bracket.
template <class T, class Number, class Mass>
__device__ __forceinline__ Threshold threshold_of(const T* row, int cols, float target, float least,
                                                  float most, Number&& number, Mass&& mass) {
  Bracket bracket = bracket_of(least, most);
  for (int pass = 0; !found(bracket); ++pass) {
    float pivots[kPivots], masses[kPivots] = {}, ends[2] = {-INFINITY, -INFINITY};
    pivots_of(bracket, pass < kPassesOverValues, pivots);
    const float low = ordered(bracket.low), high = ordered(bracket.high);
    // A vector of 16-bit elements takes longer to process than the next one takes to load.
    for_elements<sizeof(T) / 2>(row, cols, [&](float value, int column) {
      const float x = number(value, column), m = mass(value, column);
#pragma unroll
      for (int j = 0; j < kPivots; ++j) masses[j] += x >= pivots[j] ? m : 0.0f;
      if (x >= low && x < high) {
        ends[0] = fmaxf(ends[0], x);
        ends[1] = fmaxf(ends[1], -x);
      }
    });
    reduce_block(masses, Sum{});
    reduce_block(ends, Max{});
    narrow(bracket, pivots, masses, target);
    if (ends[0] == -ends[1]) {
      bracket.low = order_of(ends[0] + 0.0f);  // -0 becomes +0
      bracket.high = bracket.low + 1;
    }
  }
  return {ordered(bracket.low), bracket.above};
}

// The tokens of a row that may still be drawn, and their weights e^((logit - largest) /
// temperature).
struct Candidates {
  float most, inverse_temperature;
  float least = -INFINITY;                   // the smallest logit kept (top_k, top_p)
  float tie = INFINITY;                      // of the logits equal to this one,
  int last_tie = 0;                          // only those up to this column are kept
  float least_weight = 0.0f;                 // the smallest weight kept (min_p)
  float mean = 0.0f, closeness = -INFINITY;  // typical_p: -|log weight - mean| >= closeness

  __device__ __forceinline__ float log_weight(float value) const {
    return (value - most) * inverse_temperature;
  }
  __device__ __forceinline__ float near(float value) const {
    return -fabsf(log_weight(value) - mean);
  }
  __device__ __forceinline__ float weight(float value, int column) const {
    const float w = expf(log_weight(value));
    const bool kept = value >= least && !(value == tie && column > last_tie) && w >= least_weight &&
                      near(value) >= closeness;
    return kept ? w : 0.0f;
  }
};

// Samples by the inverse CDF over the elements, thread after thread, and writes the token.
// `uniform` is the random number, in [0, 1).
template <class T>
__device__ __forceinline__ void pick(int64_t* token, const T* row, int cols,
                                     const Candidates& candidates, double uniform) {
  constexpr int kEach = kDrawThreads / kWarp;
  __shared__ float sums[kDrawThreads];
  __shared__ double rest_of_thread;
  __shared__ int thread;
  float sum = 0.0f;
  for_elements(row, cols,
               [&](float value, int column) { sum += candidates.weight(value, column); });
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float* mine = sums + threadIdx.x * kEach;
    double own = 0.0;
    for (int i = 0; i < kEach; ++i) own += mine[i];
    double upto = own;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = __shfl_up_sync(kWholeWarp, upto, distance);
      if (static_cast<int>(threadIdx.x) >= distance) upto += before;
    }
    double rest = uniform * __shfl_sync(kWholeWarp, upto, kWarp - 1) - (upto - own);
    // The last lane that begins at or before the random number and has a mass above 0.
    const unsigned lanes = __ballot_sync(kWholeWarp, own > 0.0 && rest >= 0.0);
    if (static_cast<int>(threadIdx.x) == (lanes ? 31 - __clz(static_cast<int>(lanes)) : 0)) {
      int chosen = 0;
      double left = rest;
      for (int i = 0; i < kEach; ++i) {
        if (mine[i] == 0.0f) continue;
        chosen = i;
        left = rest;
        if (rest < mine[i]) break;
        rest -= mine[i];
      }
      thread = threadIdx.x * kEach + chosen;
      rest_of_thread = left;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) != thread) return;
  double rest = rest_of_thread;
  int picked = -1;
  bool over = false;
  for_elements(row, cols, [&](float value, int column) {
    const float w = candidates.weight(value, column);
    if (over || w == 0.0f) return;
    picked = column;
    over = rest < w;
    rest -= w;
  });
  *token = picked;
}

}  // namespace fusewire::cuda
