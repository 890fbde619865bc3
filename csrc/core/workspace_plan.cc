#include "core/workspace_plan.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace fusewire {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

struct Span {
  size_t begin;
  size_t end;
};

// The tightest gap of at least `bytes` between `taken` spans, else the end of the highest.
size_t best_offset(std::vector<Span>& taken, size_t bytes) {
  std::sort(taken.begin(), taken.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  size_t top = 0;
  size_t best_gap = SIZE_MAX;
  size_t best = SIZE_MAX;
  for (const Span& span : taken) {
    if (span.begin >= top + bytes && span.begin - top < best_gap) {
      best_gap = span.begin - top;
      best = top;
    }
    top = std::max(top, span.end);
  }
  return best == SIZE_MAX ? top : best;
}

// The busiest moment begins with some tensor's first use.
size_t busiest_bytes(const std::vector<Lifetime>& lifetimes) {
  size_t busiest = 0;
  for (const Lifetime& moment : lifetimes) {
    size_t alive = 0;
    for (const Lifetime& other : lifetimes) {
      bool is_alive = other.first_use <= moment.first_use && moment.first_use <= other.last_use;
      if (is_alive) alive += aligned(other.bytes);
    }
    busiest = std::max(busiest, alive);
  }
  return busiest;
}

}  // namespace

WorkspacePlan plan_workspace(const std::vector<Lifetime>& lifetimes) {
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].last_use < lifetimes[i].first_use) {
      fail("lifetimes[", i, "]: got last use ", lifetimes[i].last_use, " before first use ",
           lifetimes[i].first_use, ", wanted first <= last; record the tensor again");
    }
  }
  std::vector<size_t> by_size(lifetimes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  // Among equals the earlier first: for tensors of one size that order reaches the lower bound.
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    const Lifetime &left = lifetimes[a], &right = lifetimes[b];
    return left.bytes != right.bytes ? left.bytes > right.bytes : left.first_use < right.first_use;
  });

  WorkspacePlan plan;
  plan.offsets.resize(lifetimes.size());
  plan.lower_bound = busiest_bytes(lifetimes);
  std::vector<Span> taken;
  for (size_t placed = 0; placed < by_size.size(); ++placed) {
    size_t tensor = by_size[placed];
    size_t bytes = aligned(lifetimes[tensor].bytes);
    taken.clear();
    for (size_t i = 0; i < placed; ++i) {
      size_t other = by_size[i];
      if (!lifetimes[other].overlaps(lifetimes[tensor])) continue;
      taken.push_back({plan.offsets[other], plan.offsets[other] + aligned(lifetimes[other].bytes)});
    }
    plan.offsets[tensor] = best_offset(taken, bytes);
    plan.peak = std::max(plan.peak, plan.offsets[tensor] + bytes);
  }
  return plan;
}

}  // namespace fusewire
