// A survey of logits, by which the candidates of beams are found: the softmax of each segment of a
// row, and the largest logit of every strip of it.
#pragma once

#include "core/kernels.h"
#include "cuda/element.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {

constexpr int kSurveyThreads = 256;
constexpr int kHeld = 32;                              // elements per thread
constexpr int kSegment = kSurveyThreads * kHeld;       // columns per block
constexpr int kStripLanes = 8;                         // threads per strip: 128 bytes of a row
constexpr int kStrips = kSurveyThreads / kStripLanes;  // strips per segment

// The largest logit (NaN if there is a NaN or +infinity) and the sum of exponentials relative to
// it.
struct Softmax {
  float most, sum;
};

// The softmax of a beam's row: a log-probability is (logit - most) - log_sum. Both are 0 if rows
// are normalized. beam_score is -infinity for beams that do not continue.
struct alignas(16) SurveyedRow {
  float most, log_sum, beam_score;

  __device__ __forceinline__ bool empty() const { return beam_score == -INFINITY; }
  __device__ __forceinline__ float log_prob(float logit) const { return (logit - most) - log_sum; }
  __device__ __forceinline__ float score(float logit) const { return beam_score + log_prob(logit); }
};

struct Survey {
  SurveyedRow* rows;  // [rows], for the kernel that reads the survey
  Softmax* parts;     // [rows, segments]
  float* maxima;      // [rows, segments, kStrips]
  int segments;       // per row

  static int64_t segments_of(int64_t cols) { return (cols + kSegment - 1) / kSegment; }
  static size_t bytes(int64_t rows, int64_t cols) {
    const int64_t parts = rows * segments_of(cols);
    return static_cast<size_t>(rows) * sizeof(SurveyedRow) +
           static_cast<size_t>(parts) * (sizeof(Softmax) + kStrips * sizeof(float));
  }
  Survey(void* memory, int64_t row_count, int64_t cols)
      : rows(static_cast<SurveyedRow*>(memory)),
        parts(reinterpret_cast<Softmax*>(rows + row_count)),
        maxima(reinterpret_cast<float*>(parts + row_count * segments_of(cols))),
        segments(static_cast<int>(segments_of(cols))) {}
};

// Fills parts and maxima, except for beams whose score is -infinity.
template <class T>
void survey_logits(const BeamArguments& a, const Survey& survey, const Stream& stream);

struct MaxOrNan {
  __device__ __forceinline__ float operator()(float a, float b) const {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
  }
};

template <class T>
__device__ __forceinline__ const T* segment_of(const BeamArguments& a, int64_t row, int segment) {
  return static_cast<const T*>(a.logits) + row * a.stride +
         static_cast<int64_t>(segment) * kSegment;
}
__device__ __forceinline__ int segment_cols(const BeamArguments& a, int segment) {
  return static_cast<int>(
      min(a.cols - static_cast<int64_t>(segment) * kSegment, int64_t{kSegment}));
}

// The elements of a segment that thread t of its block holds, -infinity beyond the row.
template <class T>
struct Held {
  static constexpr int n = Vector<T>::kSize, kVectors = kHeld / n;
  Vector<T> vectors[kVectors];

  // Returns the column of element i of thread t.
  __device__ __forceinline__ static int column(int t, int i) {
    return (i / n * kSurveyThreads + t) * n + i % n;
  }
  __device__ __forceinline__ void load(const T* segment, int cols, int t) {
    if (cols % n == 0 && reinterpret_cast<uintptr_t>(segment) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) vectors[i].at[j] = from_float<T>(-INFINITY);
        const int c = column(t, i * n);
        if (c < cols) vectors[i] = Vector<T>::load(segment + c);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
          const int c = column(t, i * n + j);
          vectors[i].at[j] = c < cols ? segment[c] : from_float<T>(-INFINITY);
        }
      }
    }
  }
  // Calls body(element, i) for each element i of the thread.
  template <class Body>
  __device__ __forceinline__ void for_each(Body&& body) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < n; ++j) body(to_float(vectors[i].at[j]), i * n + j);
    }
  }
};

}  // namespace fusewire::cuda
