// Sums over long rows, and the threshold that a mass of a row's elements reaches (core/bracket.h).
//
// Three passes over the row leave about 1/512 of the elements in the bracket. These are copied, and
// the rest of the search reads only them.
#pragma once

#include "core/bracket.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

// Elements that are summed in one chain: a longer one over a vocabulary would lose digits.
constexpr int64_t kChunk = 64 * kLanes;

FUSEWIRE_INLINE int64_t least_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Calls body(column, lanes) for each register of [begin, end); lanes < kLanes in a partial last
// one.
template <class Body>
FUSEWIRE_INLINE void for_registers(int64_t begin, int64_t end, Body&& body) {
  int64_t c = begin;
  for (; c + kLanes <= end; c += kLanes) body(c, int64_t{kLanes});
  if (c < end) body(c, end - c);
}

FUSEWIRE_INLINE Vec load_lanes(const float* p, int64_t lanes, float fill) {
  return lanes == kLanes ? load(p) : load_first(p, lanes, fill);
}
FUSEWIRE_INLINE void store_lanes(float* p, Vec v, int64_t lanes) {
  lanes == kLanes ? store(p, v) : store_first(p, v, lanes);
}

// masses[j] = the mass of the elements >= pivots[j]. Unless kWeighted, each counts as one, which is
// exact up to 2^24 per lane.
template <bool kWeighted>
void masses_above(const float* x, const float* weights, int64_t n, const float (&pivots)[kPivots],
                  float (&masses)[kPivots]) {
  Vec total[kPivots] = {}, pivot[kPivots];
#pragma GCC unroll 7
  for (int j = 0; j < kPivots; ++j) pivot[j] = broadcast(pivots[j]);
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    Vec sum[kPivots] = {};
    for_registers(begin, least_of(begin + kChunk, n), [&](int64_t c, int64_t lanes) {
      const Vec v = load_lanes(x + c, lanes, -__builtin_inff());
      const Vec mass = kWeighted ? load_lanes(weights + c, lanes, 0.0f) : broadcast(1.0f);
#pragma GCC unroll 7
      for (int j = 0; j < kPivots; ++j) sum[j] += v >= pivot[j] ? mass : Vec{};
    });
#pragma GCC unroll 7
    for (int j = 0; j < kPivots; ++j) total[j] += sum[j];
  }
  for (int j = 0; j < kPivots; ++j) masses[j] = reduce_add(total[j]);
}

// Copies the elements with low <= x < high, in order, with their weights or indices, and returns
// their number. Without `second` the indices are the columns. Most blocks have no such element,
// which their maximum tells.
template <class Second>
int64_t collect(const float* x, const Second* second, int64_t n, float low, float high, float* to,
                Second* second_to) {
  constexpr int64_t kBlock = 4 * kLanes;
  const Vec none = broadcast(-__builtin_inff()), end = broadcast(high);
  int64_t found = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t stop = least_of(begin + kBlock, n);
    Vec largest = none;
    for_registers(begin, stop, [&](int64_t c, int64_t lanes) {
      const Vec v = load_lanes(x + c, lanes, -__builtin_inff());
      largest = max(largest, v < end ? v : none);
    });
    if (reduce_max(largest) < low) continue;
    int32_t inside[kBlock];  // -1 or 0, added up, because a branch here would be unpredictable
    for_registers(begin, stop, [&](int64_t c, int64_t lanes) {
      const Vec v = load_lanes(x + c, lanes, -__builtin_inff());
      const IntVec mask = (v >= low) & (v < end);
      memcpy(inside + (c - begin), &mask, sizeof mask);
    });
    for (int64_t c = begin; c < stop; ++c) {
      to[found] = x[c];
      second_to[found] = second ? second[c] : static_cast<Second>(c);
      found -= inside[c - begin];
    }
  }
  return found;
}

// Returns the largest threshold such that the elements >= it have a mass of at least `target`;
// `least` if all of them have less. least <= most bound the elements that matter; spare has room
// for 2 n floats.
template <bool kWeighted>
Threshold threshold_of(const float* x, const float* weights, int64_t n, float target, float least,
                       float most, float* spare) {
  Bracket bracket = bracket_of(least, most);
  float beyond = 0.0f;  // mass of the elements above the bracket, which x no longer has
  const auto pass = [&](bool values) {
    float pivots[kPivots], masses[kPivots];
    pivots_of(bracket, values, pivots);
    masses_above<kWeighted>(x, weights, n, pivots, masses);
    for (float& mass : masses) mass += beyond;
    narrow(bracket, pivots, masses, target);
  };
  for (int i = 0; i < kPassesOverValues && !found(bracket); ++i) pass(true);
  if (!found(bracket)) {
    float* weights_to = spare + n;
    n = collect<float>(x, weights, n, ordered(bracket.low), ordered(bracket.high), spare,
                       weights_to);
    x = spare;
    weights = weights_to;
    beyond = bracket.above;
  }
  while (!found(bracket)) pass(false);
  return {ordered(bracket.low), bracket.above};
}

}  // namespace fusewire::FUSEWIRE_TARGET
