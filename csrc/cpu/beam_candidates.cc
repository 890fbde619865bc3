// The best continuations of groups of beams, from one read of the logits.
//
// Retrieve, then re-rank. The first pass over the rows computes the largest logit and the sum of
// exponentials (online: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax",
// section 3) and stores the largest logit of every strip of columns. The score of a group's n-th
// best strip is a bound that at least n candidates reach, so the second pass reads only the strips
// that reach it, about n of them. Rounding is monotonic: the score of a strip's largest logit is
// the largest score in it, and the result is exact.
#include <cmath>

#include "core/beam_key.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/thread_buffer.h"
#include "core/threads.h"
#include "cpu/threshold.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kStrip = 256;            // columns
constexpr int64_t kSegment = 64 * kStrip;  // columns per task of the first pass

int64_t parts_of(int64_t whole, int64_t part) {
  return (whole + part - 1) / part;
}

// The largest logit of a segment or a row, and the sum of exponentials relative to it.
struct Softmax {
  float most, sum;
  bool sound;  // neither NaN nor +inf
};

// log_prob of a logit is logit - most - log_sum. Both are 0 where rows are normalised.
struct Row {
  float most, log_sum;
  bool sound, empty;  // empty: no candidates

  template <class Number>
  FUSEWIRE_INLINE Number log_prob(Number logit) const {
    return (logit - most) - log_sum;
  }
};

FUSEWIRE_INLINE Softmax survey(const float* x, int64_t cols, bool normalized, float* maxima) {
  const Vec none = broadcast(-INFINITY);
  Vec total = {}, broken = {};
  float most = -INFINITY;
  for (int64_t begin = 0; begin < cols; begin += kStrip) {
    const int64_t end = least_of(begin + kStrip, cols);
    Vec top = none;
    for_registers(begin, end, [&](int64_t c, int64_t lanes) {
      const Vec v = load_lanes(x + c, lanes, -INFINITY);
      top = max(v, top);
      broken = v != v ? none : broken;
    });
    const float largest = reduce_max(top);
    *maxima++ = largest;
    if (largest > most) {
      total *= exp(broadcast(most - largest));
      most = largest;
    }
    if (normalized || largest == -INFINITY) continue;
    Vec sum = {};
    for_registers(begin, end, [&](int64_t c, int64_t lanes) {
      sum += exp(load_lanes(x + c, lanes, -INFINITY) - most);
    });
    total += sum;
  }
  return {most, reduce_add(total), reduce_max(-broken) == 0.0f && most < INFINITY};
}

Row merged(const Softmax* parts, int64_t count, bool normalized) {
  float most = -INFINITY, sum = 0.0f;
  bool sound = true;
  for (int64_t i = 0; i < count; ++i) {
    most = parts[i].most > most ? parts[i].most : most;
    sound &= parts[i].sound;
  }
  const bool empty = most == -INFINITY;
  if (!sound || empty || normalized) return {0.0f, 0.0f, sound, empty};
  for (int64_t i = 0; i < count; ++i) sum += parts[i].sum * std::exp(parts[i].most - most);
  return {most, std::log(sum), true, false};
}

// The n best keys that were offered, as a heap with the worst at its root. It is not the standard
// library's heap, whose functions the targets would share (cpu/vec.h).
class Best {
 public:
  Best(BeamKey* keys, int64_t n) : keys_(keys), n_(n) {}

  bool full() const { return size_ == n_; }
  BeamKey worst() const { return keys_[0]; }
  void clear() { size_ = 0; }

  void offer(BeamKey key) {
    if (!full()) {
      int64_t at = size_++;
      for (; at > 0 && keys_[(at - 1) / 2] > key; at = (at - 1) / 2)
        keys_[at] = keys_[(at - 1) / 2];
      keys_[at] = key;
    } else if (key > worst()) {
      sink(key, size_);
    }
  }

  // Sorts the keys, best first, and returns their number.
  int64_t sort() {
    for (int64_t end = size_ - 1; end > 0; --end) {
      const BeamKey last = keys_[end];
      keys_[end] = keys_[0];
      sink(last, end);
    }
    return size_;
  }

 private:
  // Puts `key` in the place of the root of a heap of `size`.
  void sink(BeamKey key, int64_t size) {
    int64_t at = 0;
    for (int64_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && keys_[child + 1] < keys_[child]) ++child;
      if (keys_[child] >= key) break;
      keys_[at] = keys_[child];
      at = child;
    }
    keys_[at] = key;
  }

  BeamKey* keys_;
  int64_t n_, size_ = 0;
};

// Offers the candidates of a strip whose scores are above `bar`, which is raised to the worst of
// the best n: later candidates lose ties.
FUSEWIRE_INLINE void offer_strip(Best& best, float& bar, const float* x, int64_t cols,
                                 const Row& row, float beam_score, uint32_t position) {
  constexpr int64_t kBlock = 4 * kLanes;
  const Vec none = broadcast(-INFINITY);
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = least_of(begin + kBlock, cols);
    Vec largest = none;
    for_registers(begin, end, [&](int64_t c, int64_t lanes) {
      largest = max(largest, beam_score + row.log_prob(load_lanes(x + c, lanes, -INFINITY)));
    });
    if (!(reduce_max(largest) > bar)) continue;
    for (int64_t c = begin; c < end; ++c) {
      const float score = beam_score + row.log_prob(x[c]);
      if (!(score > bar)) continue;
      best.offer(beam_key(score, position + static_cast<uint32_t>(c)));
      if (best.full()) {
        const float worst = score_of(best.worst());
        bar = worst > bar ? worst : bar;
      }
    }
  }
}

void check_groups(const BeamArguments& a) {
  for (int64_t g = 0; g < a.groups; ++g) {
    if (a.offsets[g] < 0 || a.offsets[g] > a.offsets[g + 1] || a.offsets[g + 1] > a.rows) {
      fail("beam_candidates: offsets[", g, "]: got ", a.offsets[g], " and then ", a.offsets[g + 1],
           ", wanted ascending ones within 0 to ", a.rows);
    }
    if (a.counts[g] < 0 || a.counts[g] > a.most) {
      fail("beam_candidates: counts[", g, "]: got ", a.counts[g], ", wanted 0 to ", a.most);
    }
  }
}

}  // namespace

void beam_candidates(const BeamArguments& a, const Stream&) {
  check_groups(a);
  const auto* logits = static_cast<const float*>(a.logits);
  const int64_t segments = parts_of(a.cols, kSegment), strips = parts_of(a.cols, kStrip);
  const size_t keys_bytes = sizeof(BeamKey) * static_cast<size_t>(a.groups * a.most);
  const size_t parts_bytes = sizeof(Softmax) * static_cast<size_t>(a.rows * segments);
  const size_t rows_bytes = sizeof(Row) * static_cast<size_t>(a.rows);
  const size_t maxima_bytes = sizeof(float) * static_cast<size_t>(a.rows * strips);
  char* memory =
      static_cast<char*>(thread_buffer(keys_bytes + parts_bytes + rows_bytes + maxima_bytes));
  auto* keys = reinterpret_cast<BeamKey*>(memory);
  auto* parts = reinterpret_cast<Softmax*>(memory + keys_bytes);
  auto* rows = reinterpret_cast<Row*>(memory + keys_bytes + parts_bytes);
  auto* maxima = reinterpret_cast<float*>(memory + keys_bytes + parts_bytes + rows_bytes);

  parallel_for(a.rows * segments, 1, [&](int64_t task, int64_t, int) {
    const int64_t r = task / segments, begin = task % segments * kSegment;
    if (a.beam_scores[r] == -INFINITY) return;
    parts[task] = survey(logits + r * a.stride + begin, least_of(kSegment, a.cols - begin),
                         a.normalized, maxima + r * strips + begin / kStrip);
  });

  parallel_for(a.groups, 1, [&](int64_t g, int64_t, int) {
    const int64_t first = a.offsets[g], n = a.counts[g];
    bool sound = true;
    Best best(keys + g * a.most, n);
    // Find the n-th best strip.
    for (int64_t r = first; r < a.offsets[g + 1]; ++r) {
      if (a.beam_scores[r] == -INFINITY) {
        rows[r] = {0.0f, 0.0f, true, true};
        continue;
      }
      rows[r] = merged(parts + r * segments, segments, a.normalized);
      sound &= rows[r].sound && std::isfinite(a.beam_scores[r]);
      if (!sound || rows[r].empty || n == 0) continue;
      for (int64_t s = 0; s < strips; ++s) {
        float& score = maxima[r * strips + s];
        score = a.beam_scores[r] + rows[r].log_prob(score);
        if (best.full() && !(score > score_of(best.worst()))) continue;
        best.offer(beam_key(score, static_cast<uint32_t>((r - first) * strips + s)));
      }
    }
    float bar =
        best.full() && n > 0 ? std::nextafter(score_of(best.worst()), -INFINITY) : -INFINITY;
    best.clear();
    for (int64_t r = first; sound && n > 0 && r < a.offsets[g + 1]; ++r) {
      if (rows[r].empty) continue;
      for (int64_t s = 0; s < strips; ++s) {
        if (!(maxima[r * strips + s] > bar)) continue;
        const int64_t begin = s * kStrip;
        offer_strip(best, bar, logits + r * a.stride + begin, least_of(kStrip, a.cols - begin),
                    rows[r], a.beam_scores[r], static_cast<uint32_t>((r - first) * a.cols + begin));
      }
    }
    const int64_t found = best.sort();
    for (int64_t i = 0; i < a.most; ++i) {
      const int64_t at = g * a.most + i;
      if (i < found) {
        const int64_t position = position_of(keys[at]), beam = position / a.cols;
        const int64_t token = position % a.cols, r = first + beam;
        a.log_probs[at] = rows[r].log_prob(logits[r * a.stride + token]);
        a.scores[at] = a.beam_scores[r] + a.log_probs[at];
        a.beams[at] = static_cast<int32_t>(beam);
        a.tokens[at] = static_cast<int32_t>(token);
      } else {
        a.scores[at] = a.log_probs[at] = sound ? -INFINITY : NAN;
        a.beams[at] = a.tokens[at] = -1;
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
