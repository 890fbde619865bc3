// Finds the best continuations of groups of beams in one read of the logits.
//
// It retrieves candidates, then re-ranks them. A survey (beam_survey.h) computes the softmax of the
// rows and the largest logit of every strip of them. Then one block per group selects. A bound that
// n strips reach is reached by at least n candidates. The block therefore reads only the strips
// that reach it, not many more than n, and orders the candidates that it finds there. The result is
// exact, because rounding is monotonic: the score of a strip's largest logit is the largest score
// in the strip. If masses of equal scores reach the bound, a radix selection over these strips
// finds the exact bound. Segments depend on the width of a row alone, and so does the order of
// every sum.
//
// There is little arithmetic. The time is spent waiting for memory and for other threads, so the
// code does both as rarely as it can.
#include "core/beam_key.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/sampling/beam_survey.h"
#include "cuda/sampling/select.h"

namespace fusewire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPartLanes = 8;        // consecutive threads that combine the parts of a row
constexpr int kShares = 2 * kWarps;  // shares of a group's strips: odd and even lanes of each warp
constexpr int kCapacity = 4096;      // keys in shared memory: 32 KiB, twice the most wanted
constexpr int kHeldRows = 512;       // rows in shared memory

// Combines the parts of a row's softmax. kPartLanes threads share a row.
__device__ __forceinline__ SurveyedRow row_of(const Softmax* parts, int segments, float beam_score,
                                              bool normalized) {
  const int lane = threadIdx.x % kPartLanes;
  float most = -INFINITY, sum = 0.0f;
  for (int i = lane; i < segments; i += kPartLanes) most = MaxOrNan{}(most, parts[i].most);
  most = reduce_lanes<kPartLanes>(most, MaxOrNan{});
  for (int i = lane; i < segments; i += kPartLanes) {
    const Softmax part = parts[i];
    if (part.most > -INFINITY) sum += part.sum * expf(part.most - most);
  }
  sum = reduce_lanes<kPartLanes>(sum, Sum{});
  if (most == -INFINITY) return {0.0f, 0.0f, -INFINITY};
  if (normalized) return {isnan(most) ? NAN : 0.0f, 0.0f, beam_score};
  return {most, logf(sum), beam_score};
}

__device__ __forceinline__ uint32_t order_of_score(float score) {
  return static_cast<uint32_t>(beam_key(score, 0) >> 32);
}

// Selects the candidates of one group per block. Offsets and counts are known on the device only,
// where no error can be raised: a group whose rows are out of range has no candidates.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    select_candidates(const BeamArguments a, const Survey survey) {
  __shared__ BeamKey keys[kCapacity];
  __shared__ SurveyedRow held_rows[kHeldRows];
  __shared__ uint32_t best_of_share[kShares];
  __shared__ int count;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch(a.offsets + blockIdx.x);
    prefetch(a.counts + blockIdx.x);
  }
  wait_for_inputs();
  const int group = blockIdx.x, most = static_cast<int>(a.most);
  const int begin = a.offsets[group], end = a.offsets[group + 1];
  const int beams = begin >= 0 && begin <= end && end <= a.rows ? end - begin : 0;
  const int want = min(max(a.counts[group], 0), most);
  const int strips_of_row = survey.segments * kStrips, strips = beams * strips_of_row;
  SurveyedRow* const rows = beams <= kHeldRows ? held_rows : survey.rows + begin;
  const Softmax* const parts = survey.parts + static_cast<int64_t>(begin) * survey.segments;
  const float* const maxima = survey.maxima + static_cast<int64_t>(begin) * strips_of_row;

  if (threadIdx.x == 0) count = 0;
  bool broken = false;
  for (int first = 0; first < beams; first += kThreads / kPartLanes) {
    const int beam = first + static_cast<int>(threadIdx.x) / kPartLanes;
    if (__all_sync(kWholeWarp, beam >= beams)) break;
    const float beam_score = beam < beams ? a.beam_scores[begin + beam] : -INFINITY;
    const bool alive = beam_score != -INFINITY;
    const SurveyedRow row = row_of(parts + int64_t{beam} * survey.segments,
                                   alive ? survey.segments : 0, beam_score, a.normalized);
    broken |= isnan(row.most) || (alive && !isfinite(beam_score));
    if (beam < beams && lane % kPartLanes == 0) rows[beam] = row;
  }
  broken = __syncthreads_or(broken);  // also makes the rows visible to all threads

  // Adjacent strips belong to different warps, so that the strips of a beam that is ahead of the
  // others are spread over all shares.
  const auto strip_of = [&](int first, int of_lane) { return first + of_lane * kWarps + warp; };
  const auto score_of_strip = [&](int strip) {
    if (strip >= strips) return -INFINITY;
    const SurveyedRow row = rows[strip / strips_of_row];
    return row.empty() ? -INFINITY : row.score(maxima[strip]);
  };
  // Calls body(key) for each element that reaches `least`. kStripLanes threads share a strip.
  const auto for_reaching = [&](uint32_t least, auto&& body) {
    const float least_score = ordered(static_cast<int32_t>(least ^ 0x80000000u));
    for (int first = 0; first < strips; first += kThreads) {
      const float own = score_of_strip(strip_of(first, lane));
      unsigned reaching = __ballot_sync(kWholeWarp, own >= least_score);
      while (reaching) {
        int strip = -1;
#pragma unroll
        for (int share = 0; share < kWarp / kStripLanes; ++share) {
          if (lane / kStripLanes == share && reaching) {
            strip = strip_of(first, __ffs(static_cast<int>(reaching)) - 1);
          }
          reaching &= reaching - 1;
        }
        if (strip < 0) continue;
        const int beam = strip / strips_of_row, in_row = strip % strips_of_row;
        const int segment = in_row / kStrips;
        const int t = in_row % kStrips * kStripLanes + lane % kStripLanes;
        const SurveyedRow row = rows[beam];
        const T* const logits = segment_of<T>(a, begin + beam, segment);
        Held<T> held;
        held.load(logits, segment_cols(a, segment), t);
        uint32_t found = 0;
        static_assert(kHeld <= 32);
        held.for_each([&](float value, int i) {
          found |= static_cast<uint32_t>(row.score(value) >= least_score) << i;
        });
        const uint32_t position = static_cast<uint32_t>(beam) * static_cast<uint32_t>(a.cols) +
                                  static_cast<uint32_t>(segment) * kSegment;
        for (; found; found &= found - 1) {  // few, and read from the cache: a loop is enough
          const int column = Held<T>::column(t, __ffs(static_cast<int>(found)) - 1);
          body(beam_key(row.score(to_float(logits[column])), position + column));
        }
      }
    }
  };
  const auto collect = [&](BeamKey threshold) {
    for_reaching(static_cast<uint32_t>(threshold >> 32), [&](BeamKey key) {
      if (key < threshold) return;
      const int slot = atomicAdd(&count, 1);
      if (slot < kCapacity) keys[slot] = key;
    });
    __syncthreads();
    return count;
  };
  // Returns a bound that at least `want` strips reach. If there are at least twice as many shares
  // as wanted, it is the want-th largest of their maxima, which few more strips than that reach;
  // otherwise the exact want-th largest of all strips.
  const auto reached_by_strips = [&]() -> uint32_t {
    if (2 * want > kThreads) {
      if (strips < want) return 0;
      return reached_by<uint32_t>(want, [&](auto&& body) {
        for (int i = threadIdx.x; i < strips; i += kThreads)
          body(order_of_score(score_of_strip(i)));
      });
    }
    float best = -INFINITY;
    for (int first = 0; first < strips; first += kThreads) {
      best = fmaxf(best, score_of_strip(strip_of(first, lane)));
    }
    if (2 * want > kShares) {  // the strips of each thread are a share
      return reached_by<uint32_t>(want, [&](auto&& body) { body(order_of_score(best)); });
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 1; distance /= 2) {
      best = fmaxf(best, __shfl_xor_sync(kWholeWarp, best, distance));
    }
    if (lane < 2) best_of_share[2 * warp + lane] = order_of_score(best);
    __syncthreads();
    static_assert(kShares == kWarp);
    const uint32_t own = best_of_share[lane];
    int reaching = 0;
#pragma unroll
    for (int i = 0; i < kShares; ++i) reaching += best_of_share[i] >= own;
    return __reduce_max_sync(kWholeWarp, reaching >= want ? own : 0);
  };
  const auto put = [&](int i, BeamKey key) {
    const uint32_t position = position_of(key), cols = static_cast<uint32_t>(a.cols);
    const int beam = static_cast<int>(position / cols), token = static_cast<int>(position % cols);
    const SurveyedRow row = rows[beam];
    const float log_prob = row.log_prob(to_float(segment_of<T>(a, begin + beam, 0)[token]));
    const int64_t at = static_cast<int64_t>(group) * most + i;
    a.scores[at] = row.beam_score + log_prob;
    a.log_probs[at] = log_prob;
    a.beams[at] = beam;
    a.tokens[at] = token;
  };

  int found = 0;
  if (!broken && want > 0) {
    const uint32_t least = max(order_of_score(-INFINITY) + 1, reached_by_strips());
    const BeamKey threshold = static_cast<BeamKey>(least) << 32;
    found = collect(threshold);
    if (found > kCapacity) {
      const BeamKey exact =
          reached_by<BeamKey>(want, [&](auto&& body) { for_reaching(least, body); });
      if (threadIdx.x == 0) count = 0;  // all threads have read it before the last barrier
      __syncthreads();
      found = collect(exact);
    }
    if (found <= kThreads) {  // keys are distinct: the rank of a key is how many are better
      if (static_cast<int>(threadIdx.x) < found) {
        const BeamKey own = keys[threadIdx.x];
        int better = 0;
        for (int i = 0; i < found; ++i) better += keys[i] > own;
        if (better < want) put(better, own);
      }
    } else {
      int size = 2;
      while (size < found) size *= 2;
      for (int i = found + threadIdx.x; i < size; i += kThreads) keys[i] = 0;
      __syncthreads();
      sort(keys, size);
      for (int i = threadIdx.x; i < min(found, want); i += kThreads) put(i, keys[i]);
    }
  }
  for (int i = min(found, want) + threadIdx.x; i < most; i += kThreads) {
    const int64_t at = static_cast<int64_t>(group) * most + i;
    a.scores[at] = a.log_probs[at] = broken ? NAN : -INFINITY;
    a.beams[at] = a.tokens[at] = -1;
  }
}

}  // namespace

template <class T>
void beam_candidates(const BeamArguments& a, const Stream& stream) {
  const Survey survey(kept_memory(stream, Survey::bytes(a.rows, a.cols)), a.rows, a.cols);
  survey_logits<T>(a, survey, stream);
  launch(select_candidates<T>, dim3(static_cast<unsigned>(a.groups)), kThreads, 0, stream, a,
         survey);
}

#define INSTANTIATE(T) template void beam_candidates<T>(const BeamArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
