// Samples one token from one row of logits.
#pragma once

#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/kernels.h"
#include "core/philox.h"
#include "cpu/threshold.h"

namespace fusewire::FUSEWIRE_TARGET {

// Memory of a thread, reused for the next row.
class Floats {
 public:
  ~Floats() { std::free(data_); }
  float* reserve(int64_t count) {
    if (count > size_) {
      std::free(data_);
      data_ = static_cast<float*>(std::malloc(sizeof(float) * static_cast<size_t>(count)));
      size_ = data_ ? count : 0;
      if (!data_) {
        fail_out_of_memory("the host", "sample: got no memory for ", count,
                           " numbers, wanted it; free some");
      }
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

struct Range {
  float least, most;  // of the finite elements
  bool sound;         // no NaN, and the largest element is finite
};

FUSEWIRE_INLINE Range range_of(const float* x, int64_t n) {
  const Vec none = broadcast(-INFINITY), far = broadcast(INFINITY);
  Vec most = none, least = far, broken = {};
  for_registers(0, n, [&](int64_t c, int64_t lanes) {
    const Vec v = load_lanes(x + c, lanes, -INFINITY);
    most = max(v, most);
    least = min(v > none ? v : far, least);
    broken = v != v ? none : broken;
  });
  const float top = reduce_max(most);
  return {-reduce_max(-least), top, reduce_max(-broken) == 0.0f && std::isfinite(top)};
}

FUSEWIRE_INLINE int64_t first_equal(const float* x, int64_t n, float value) {
  constexpr int64_t kBlock = 8 * kLanes;
  const Vec wanted = broadcast(value), one = broadcast(1.0f);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t stop = least_of(begin + kBlock, n);
    Vec seen = {};
    for_registers(begin, stop, [&](int64_t c, int64_t lanes) {
      seen = load_lanes(x + c, lanes, -INFINITY) == wanted ? one : seen;
    });
    if (reduce_max(seen) == 0.0f) continue;
    for (int64_t c = begin; c < stop; ++c) {
      if (x[c] == value) return c;
    }
  }
  return -1;
}

// Returns the sum of map(column, lanes) over [begin, end), chunk by chunk.
template <class Map>
FUSEWIRE_INLINE float sum_of(int64_t begin, int64_t end, Map&& map) {
  Vec total = {};
  for (; begin < end; begin += kChunk) {
    Vec sum = {};
    for_registers(begin, least_of(begin + kChunk, end),
                  [&](int64_t c, int64_t lanes) { sum += map(c, lanes); });
    total += sum;
  }
  return reduce_add(total);
}

// The elements of a row that can still be drawn: those whose weight,
// e^((logit - largest) / temperature), is not zero.
struct Candidates {
  const float* values;   // logits
  const int32_t* index;  // their columns; null: element i is column i
  float* weights;
  int64_t n;
  float* spare;  // scratch of 3 n floats
  Range range;

  float mass() const {
    return sum_of(0, n, [&](int64_t c, int64_t l) { return load_lanes(weights + c, l, 0.0f); });
  }

  // Sets the weights to zero where keep(column, lanes, weights) is false.
  template <class Keep>
  void keep(Keep&& keep) {
    for_registers(0, n, [&](int64_t c, int64_t lanes) {
      const Vec w = load_lanes(weights + c, lanes, 0.0f);
      store_lanes(weights + c, keep(c, lanes, w) ? w : Vec{}, lanes);
    });
  }

  // Keeps the fewest of the largest elements whose probability reaches top_p; of equal ones the
  // first.
  void keep_top_p(float top_p, float temperature) {
    const float target = top_p * mass();
    const float drawable = range.most - 88.0f * temperature;  // smaller ones have no weight
    const float least = range.least > drawable ? range.least : drawable;
    const Threshold t = threshold_of<true>(values, weights, n, target, least, range.most, spare);
    keep([&](int64_t c, int64_t l, Vec) { return load_lanes(values + c, l, 0.0f) >= t.value; });
    const int64_t first = first_equal(values, n, t.value);
    if (first < 0) return;
    double reached = double{t.above} + weights[first];
    const int64_t second = first_equal(values + first + 1, n - first - 1, t.value);
    if (second < 0) return;
    for (int64_t c = first + 1 + second; c < n; ++c) {
      if (values[c] != t.value) continue;
      if (reached >= target) weights[c] = 0.0f;
      reached += weights[c];
    }
  }

  // Keeps the elements whose surprise is closest to the expected one, up to a mass of typical_p
  // (Meister et al. 2022, "Locally typical sampling"): |-log p - entropy| = |z - E z| with z = log
  // of the weight.
  void keep_typical(float typical_p, float temperature) {
    const auto log_weight = [&](int64_t c, int64_t lanes) {
      return (load_lanes(values + c, lanes, -INFINITY) - range.most) / temperature;
    };
    const float total = mass();
    const float mean = sum_of(0, n,
                              [&](int64_t c, int64_t lanes) {
                                const Vec w = load_lanes(weights + c, lanes, 0.0f);
                                return w > 0.0f ? w * log_weight(c, lanes) : Vec{};
                              }) /
                       total;
    float* closeness = spare + 2 * n;
    for_registers(0, n, [&](int64_t c, int64_t lanes) {
      const Vec far = log_weight(c, lanes) - mean;
      const Vec near = far < 0.0f ? far : -far;
      const Vec w = load_lanes(weights + c, lanes, 0.0f);
      store_lanes(closeness + c, w > 0.0f ? near : broadcast(-INFINITY), lanes);
    });
    const Threshold t =
        threshold_of<true>(closeness, weights, n, typical_p * total, -88.0f, 0.0f, spare);
    keep([&](int64_t c, int64_t l, Vec) { return load_lanes(closeness + c, l, 0.0f) >= t.value; });
  }

  // Returns the column at `uniform` of the inverse CDF, in the order of the columns: finds its
  // chunk first, then the element.
  int64_t pick(double uniform) const {
    const auto mass_of = [&](int64_t begin) {
      return static_cast<double>(sum_of(begin, least_of(begin + kChunk, n), [&](auto c, auto l) {
        return load_lanes(weights + c, l, 0.0f);
      }));
    };
    double total = 0.0;
    for (int64_t begin = 0; begin < n; begin += kChunk) total += mass_of(begin);
    double rest = uniform * total, in_chunk = 0.0;
    int64_t chunk = 0;  // the one `uniform` falls into, or the last with any mass
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      const double mass = mass_of(begin);
      if (mass == 0.0) continue;
      chunk = begin;
      in_chunk = rest;
      if (rest < mass) break;
      rest -= mass;
    }
    int64_t picked = -1;
    for (int64_t c = chunk; c < least_of(chunk + kChunk, n); ++c) {
      if (weights[c] == 0.0f) continue;
      picked = c;
      if (in_chunk < weights[c]) break;
      in_chunk -= weights[c];
    }
    return index && picked >= 0 ? index[picked] : picked;
  }
};

// Returns a token sampled from row x; -1 if it has no distribution: with NaN, with +inf, or -inf
// throughout.
inline int64_t draw(const float* x, const SampleArguments& a, int64_t row, Floats& memory) {
  const Range range = range_of(x, a.cols);
  if (!range.sound) return -1;
  const float temperature = a.temperature[row];
  if (temperature == 0.0f) return first_equal(x, a.cols, range.most);
  const int64_t n = a.cols, k = a.top_k[row];
  float* floats = memory.reserve(6 * n);
  Candidates c = {x, nullptr, floats, n, floats + n, range};
  if (k > 0 && k < n) {
    const Threshold t =
        threshold_of<false>(x, nullptr, n, static_cast<float>(k), range.least, range.most, c.spare);
    float* values = floats + 4 * n;
    auto* index = reinterpret_cast<int32_t*>(floats + 5 * n);
    c.n = collect<int32_t>(x, nullptr, n, t.value, INFINITY, values, index);
    c.values = values;
    c.index = index;
    c.range.least = t.value;
  }
  for_registers(0, c.n, [&](int64_t at, int64_t lanes) {
    const Vec v = load_lanes(c.values + at, lanes, -INFINITY);
    store_lanes(c.weights + at, exp((v - range.most) / temperature), lanes);
  });
  if (a.top_p[row] < 1.0f) c.keep_top_p(a.top_p[row], temperature);
  if (const float least = a.min_p[row]; least > 0.0f) {
    c.keep([&](int64_t, int64_t, Vec weight) { return weight >= least; });
  }
  if (a.typical_p[row] < 1.0f) c.keep_typical(a.typical_p[row], temperature);
  return c.pick(
      philox_uniform(static_cast<uint64_t>(a.seeds[row]), static_cast<uint64_t>(a.steps[row])));
}

}  // namespace fusewire::FUSEWIRE_TARGET
