// The best continuations of groups of beams, from one read of the logits.
//
// Retrieve, then re-rank. A first kernel takes the softmax of each segment of a row, which its
// block holds in registers, and keeps the largest logit of every strip of it. A block of the second
// has a group: the n-th best strip's score is a bound that at least n candidates reach, so it reads
// only the strips that reach it, about n of them, and sorts what it finds there. Rounding is
// monotonic: the score of a strip's largest logit is the largest score in it, and the answer is
// exact. Where masses of equal scores reach the bound, a radix selection over these strips finds
// the exact one. Segments depend on the width of a row alone, and so does every sum.
#include "core/beam_key.h"
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/sampling/select.h"

namespace fusewire::cuda {
namespace {

constexpr int kSurveyThreads = 256;
constexpr int kHeld = 32;                              // elements of a thread
constexpr int kSegment = kSurveyThreads * kHeld;       // columns of a block
constexpr int kStripLanes = 8;                         // neighbouring threads: 128 bytes of a row
constexpr int kStrips = kSurveyThreads / kStripLanes;  // of a segment
constexpr int kSelectThreads = 512;
constexpr int kCapacity = 4096;  // keys in shared memory: 32 KiB, twice what is wanted at most

// Of a segment: the largest logit and the sum of exponentials relative to it; most is NaN where the
// segment has NaN or +inf.
struct Softmax {
  float most, sum;
};

// A log-probability is (logit - most) - log_sum; both are 0 where rows are normalized. most is -inf
// where the row has no candidates, and NaN where it is broken.
struct Row {
  float most, log_sum;

  __device__ __forceinline__ bool empty() const { return most == -INFINITY; }
  __device__ __forceinline__ float log_prob(float logit) const { return (logit - most) - log_sum; }
};

// What the first kernel leaves for the second.
struct Survey {
  Softmax* parts;  // [rows, segments]
  Row* rows;       // [rows], of the second kernel
  float* maxima;   // [rows, segments, kStrips]
  int segments;

  static size_t bytes(int64_t rows, int64_t segments) {
    const int64_t parts = rows * segments;
    return static_cast<size_t>(parts) * (sizeof(Softmax) + kStrips * sizeof(float)) +
           static_cast<size_t>(rows) * sizeof(Row);
  }
  Survey(void* memory, int64_t rows, int64_t segments)
      : parts(static_cast<Softmax*>(memory)),
        rows(reinterpret_cast<Row*>(parts + rows * segments)),
        maxima(reinterpret_cast<float*>(this->rows + rows)),
        segments(static_cast<int>(segments)) {}
};

// The elements of a segment that thread t of its block has, -inf beyond the row.
template <class T>
struct Held {
  static constexpr int n = Vector<T>::kSize, kVectors = kHeld / n;
  Vector<T> vectors[kVectors];

  __device__ __forceinline__ static int column(int t, int i) {
    return (i * kSurveyThreads + t) * n;
  }
  __device__ __forceinline__ void load(const T* segment, int cols, int t) {
    if (cols % n == 0 && reinterpret_cast<uintptr_t>(segment) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) vectors[i].at[j] = from_float<T>(-INFINITY);
        if (column(t, i) < cols) vectors[i] = Vector<T>::load(segment + column(t, i));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
          const int c = column(t, i) + j;
          vectors[i].at[j] = c < cols ? segment[c] : from_float<T>(-INFINITY);
        }
      }
    }
  }
  // body(value, column)
  template <class Body>
  __device__ __forceinline__ void for_each(int t, Body&& body) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < n; ++j) body(to_float(vectors[i].at[j]), column(t, i) + j);
    }
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

template <class T>
__global__ void __launch_bounds__(kSurveyThreads)
    survey_segments(const BeamArguments a, const Survey survey) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x / survey.segments;
  const int segment = static_cast<int>(blockIdx.x % survey.segments), t = threadIdx.x;
  if (a.beam_scores[row] == -INFINITY) return;
  Held<T> held;
  held.load(segment_of<T>(a, row, segment), segment_cols(a, segment), t);
  float most = -INFINITY;
  bool broken = false;
  held.for_each(t, [&](float value, int) {
    most = fmaxf(most, value);
    broken |= isnan(value);
  });
  const float strip = reduce_lanes<kStripLanes>(most, Max{});
  if (t % kStripLanes == 0) {
    survey.maxima[static_cast<int64_t>(blockIdx.x) * kStrips + t / kStripLanes] = strip;
  }
  float ends[2] = {strip, broken ? 1.0f : 0.0f};
  reduce<kSurveyThreads, 0>(ends, Max{});
  const float top = ends[0];
  float sums[4] = {};
  if (!a.normalized && top > -INFINITY) {
    held.for_each(t, [&](float value, int column) { sums[column % 4] += exp_for<T>(value - top); });
  }
  const float sum = reduce<kSurveyThreads, 1>((sums[0] + sums[1]) + (sums[2] + sums[3]), Sum{});
  if (t == 0) survey.parts[blockIdx.x] = {ends[1] != 0.0f || top == INFINITY ? NAN : top, sum};
}

__device__ __forceinline__ Row row_of(const Softmax* parts, int segments, bool normalized) {
  float most = -INFINITY, sum = 0.0f;
  for (int i = 0; i < segments; ++i) {
    if (isnan(parts[i].most)) return {NAN, 0.0f};
    most = fmaxf(most, parts[i].most);
  }
  if (most == -INFINITY) return {most, 0.0f};
  if (normalized) return {0.0f, 0.0f};
  for (int i = 0; i < segments; ++i) sum += parts[i].sum * expf(parts[i].most - most);
  return {most, logf(sum)};
}

__device__ __forceinline__ uint32_t order_of_score(float score) {
  return static_cast<uint32_t>(beam_key(score, 0) >> 32);
}

// Indices come from the device and are not known on the host: a group whose rows are not there has
// none.
template <class T>
__global__ void __launch_bounds__(kSelectThreads, 1)
    select_candidates(const BeamArguments a, const Survey survey) {
  __shared__ BeamKey keys[kCapacity];
  __shared__ int count;
  let_next_start();
  wait_for_inputs();
  const int group = blockIdx.x, most = static_cast<int>(a.most);
  const int begin = a.offsets[group], end = a.offsets[group + 1];
  const int beams = begin >= 0 && begin <= end && end <= a.rows ? end - begin : 0;
  const int want = min(max(a.counts[group], 0), most);
  const int strips_of_row = survey.segments * kStrips, strips = beams * strips_of_row;

  bool broken = false;
  for (int beam = threadIdx.x; beam < beams; beam += kSelectThreads) {
    const int row = begin + beam;
    const float beam_score = a.beam_scores[row];
    Row of_row = {-INFINITY, 0.0f};
    if (beam_score != -INFINITY) {
      const Softmax* parts = survey.parts + static_cast<int64_t>(row) * survey.segments;
      of_row = row_of(parts, survey.segments, a.normalized);
      broken |= isnan(of_row.most) || !isfinite(beam_score);
    }
    survey.rows[row] = of_row;
  }
  broken = __syncthreads_or(broken);  // and all see the rows

  const auto score_of_strip = [&](int strip) {
    const int row = begin + strip / strips_of_row;
    const Row of_row = survey.rows[row];
    if (of_row.empty()) return -INFINITY;
    const float largest = survey.maxima[static_cast<int64_t>(begin) * strips_of_row + strip];
    return a.beam_scores[row] + of_row.log_prob(largest);
  };
  // body(key) for the elements of the strips that reach `least`; kStripLanes threads have a strip.
  const auto for_reaching = [&](uint32_t least, auto&& body) {
    const int lane = threadIdx.x % kWarp, share = lane / kStripLanes;
    for (int first = threadIdx.x - lane; first < strips; first += kSelectThreads) {
      const int own = first + lane;
      unsigned reaching =
          __ballot_sync(kWholeWarp, own < strips && order_of_score(score_of_strip(own)) >= least);
      while (reaching) {
        int strip = -1;
#pragma unroll
        for (int i = 0; i < kWarp / kStripLanes; ++i) {
          if (share == i && reaching) strip = first + __ffs(static_cast<int>(reaching)) - 1;
          reaching &= reaching - 1;
        }
        if (strip < 0) continue;
        const int beam = strip / strips_of_row, in_row = strip % strips_of_row;
        const int segment = in_row / kStrips;
        const int t = in_row % kStrips * kStripLanes + lane % kStripLanes;
        const Row row = survey.rows[begin + beam];
        const float beam_score = a.beam_scores[begin + beam];
        const uint32_t position = static_cast<uint32_t>(beam) * static_cast<uint32_t>(a.cols) +
                                  static_cast<uint32_t>(segment) * kSegment;
        Held<T> held;
        held.load(segment_of<T>(a, begin + beam, segment), segment_cols(a, segment), t);
        held.for_each(t, [&](float value, int column) {
          body(beam_key(beam_score + row.log_prob(value), position + column));
        });
      }
    }
  };
  const auto collect = [&](BeamKey threshold) {
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for_reaching(static_cast<uint32_t>(threshold >> 32), [&](BeamKey key) {
      if (key < threshold) return;
      const int slot = atomicAdd(&count, 1);
      if (slot < kCapacity) keys[slot] = key;
    });
    __syncthreads();
    return count;
  };

  int found = 0;
  if (!broken && want > 0) {
    uint32_t least = order_of_score(-INFINITY) + 1;
    if (strips >= want) {
      least = max(least, reached_by<uint32_t>(want, [&](auto&& body) {
                    for (int i = threadIdx.x; i < strips; i += kSelectThreads) {
                      body(order_of_score(score_of_strip(i)));
                    }
                  }));
    }
    const BeamKey threshold = static_cast<BeamKey>(least) << 32;
    found = collect(threshold);
    if (found > kCapacity) {
      found = collect(reached_by<BeamKey>(want, [&](auto&& body) {
        for_reaching(least, [&](BeamKey key) {
          if (key >= threshold) body(key);
        });
      }));
    }
    int size = 2;
    while (size < found) size *= 2;
    for (int i = found + threadIdx.x; i < size; i += kSelectThreads) keys[i] = 0;
    __syncthreads();
    sort(keys, size);
  }
  for (int i = threadIdx.x; i < most; i += kSelectThreads) {
    const int64_t at = static_cast<int64_t>(group) * most + i;
    if (i < min(found, want)) {
      const uint32_t position = position_of(keys[i]), cols = static_cast<uint32_t>(a.cols);
      const int beam = static_cast<int>(position / cols), token = static_cast<int>(position % cols);
      const float logit = to_float(segment_of<T>(a, begin + beam, 0)[token]);
      const float log_prob = survey.rows[begin + beam].log_prob(logit);
      a.scores[at] = a.beam_scores[begin + beam] + log_prob;
      a.log_probs[at] = log_prob;
      a.beams[at] = beam;
      a.tokens[at] = token;
    } else {
      a.scores[at] = a.log_probs[at] = broken ? NAN : -INFINITY;
      a.beams[at] = a.tokens[at] = -1;
    }
  }
}

}  // namespace

template <class T>
void beam_candidates(const BeamArguments& a, const Stream& stream) {
  const int64_t segments = (a.cols + kSegment - 1) / kSegment;
  const Survey survey(kept_memory(stream, Survey::bytes(a.rows, segments)), a.rows, segments);
  if (a.rows > 0) {
    launch(survey_segments<T>, dim3(static_cast<unsigned>(a.rows * segments)), kSurveyThreads, 0,
           stream, a, survey);
  }
  launch(select_candidates<T>, dim3(static_cast<unsigned>(a.groups)), kSelectThreads, 0, stream, a,
         survey);
}

#define INSTANTIATE(T) template void beam_candidates<T>(const BeamArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
