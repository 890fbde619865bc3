// The order in which the sums of one query are added. It depends on the positions of the query and
// its keys alone: whether a token is computed in a prompt, in a chunk of one or on its own changes
// no bit.
//
// A score is the sum of kLanes chains along head_dim. Keys are processed in tiles of kPagedTile,
// which begin at its multiples, with a running maximum: exponentials are added key by key within a
// lane (position % kLanes) and then lane by lane (reduce_add), values key by key. The context is
// split at multiples of kSplitKeys (flash-decoding, Dao et al. 2023); each part is summed by
// itself, and parts are joined in order. A masked key adds nothing, wherever it is.
#pragma once

#include "cpu/attention_score.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kSplitKeys = 512;
constexpr int64_t kPagedTile = 64;

// Not std::min, which would be one function for all instruction sets: see cpu/vec.h.
constexpr int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Returns where the keys of a query begin: at the first that it attends to, or less than kLanes
// before.
inline int64_t first_key(const AttentionArguments& a, int64_t position) {
  return first_visible(a, position) / kLanes * kLanes;
}

// Returns the next multiple of `size`, or the end.
constexpr int64_t piece_end(int64_t position, int64_t size, int64_t last) {
  return lesser((position / size + 1) * size, last);
}

// Returns the sum so far, multiplied by `correction`, plus the next tile's. A function of its own,
// because a compiler fuses the product or not depending on the code around it.
__attribute__((noinline)) inline Vec corrected(Vec sum, Vec correction, Vec next) {
  return sum * correction + next;
}

// Joins the sums so far with those of the next part: those of the lower maximum are scaled down.
// There is one product only, so there is one way to fuse it.
struct Join {
  FUSEWIRE_INLINE Join(Vec& highest, Vec part)
      : higher(part > highest), factor(exp2(higher ? highest - part : part - highest)) {
    highest = higher ? part : highest;
  }
  FUSEWIRE_INLINE Vec operator()(Vec sum, Vec part) const {
    return (higher ? sum : part) * factor + (higher ? part : sum);
  }

  IntVec higher;
  Vec factor;
};

}  // namespace fusewire::FUSEWIRE_TARGET
