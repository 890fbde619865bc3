// Where each temporary of a computation lies in one arena, given when it is alive: a pure function
// from lifetimes to offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusewire {

inline constexpr size_t kWorkspaceAlignment = 64;  // bytes; every offset is a multiple

struct Lifetime {
  size_t bytes = 0;
  int64_t first_use = 0;
  int64_t last_use = 0;  // inclusive

  bool overlaps(const Lifetime& other) const {
    return first_use <= other.last_use && other.first_use <= last_use;
  }
};

struct WorkspacePlan {
  std::vector<size_t> offsets;  // one per lifetime, in the order given
  size_t peak = 0;              // bytes of the arena
  // Bytes alive at the busiest moment, each tensor rounded up to the alignment: no aligned layout
  // is smaller.
  size_t lower_bound = 0;
};

// Greedy by size (Pisarchyk & Lee 2020, arXiv 2001.03288): tensors from large to small, each into
// the tightest gap between those already placed that live at the same time, else above them. Where
// that is above the lower bound, once more with those of the busiest moments first (as their greedy
// by breadth has it): the smaller plan is taken. O(n^2 log n); plans are cached, so this runs once
// a shape. Error if a tensor dies before its first use.
WorkspacePlan plan_workspace(const std::vector<Lifetime>& lifetimes);

}  // namespace fusewire
