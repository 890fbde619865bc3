// Plans the offset of each temporary of a computation in one arena from the time when it is alive:
// a pure function from lifetimes to offsets.
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
  // Bytes alive at the busiest moment, with each tensor rounded up to the alignment: no aligned
  // layout is smaller.
  size_t lower_bound = 0;
};

// Greedy by size (Pisarchyk & Lee 2020, arXiv 2001.03288): places tensors from large to small, each
// in the tightest gap between those already placed that are alive at the same time, else above
// them. If the result is above the lower bound, tensors are placed once more, those of the busiest
// moments first (as in their greedy by breadth), and the smaller plan is returned. O(n^2 log n);
// plans are cached, so this runs once per shape. Error if a tensor's last use is before its first
// use.
WorkspacePlan plan_workspace(const std::vector<Lifetime>& lifetimes);

}  // namespace fusewire
