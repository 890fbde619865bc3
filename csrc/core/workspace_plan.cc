#include "core/workspace_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

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

// Returns the offset of the tightest gap of at least `bytes` between the `taken` spans, else the
// end of the highest.
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

// Returns, for each tensor, the bytes alive at the busiest moment of its life. The first use of
// some tensor begins each such moment.
std::vector<size_t> busiest_bytes(const std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> busiest(lifetimes.size());
  for (const Lifetime& moment : lifetimes) {
    size_t alive = 0;
    const auto is_alive = [&](const Lifetime& tensor) {
      return tensor.first_use <= moment.first_use && moment.first_use <= tensor.last_use;
    };
    for (const Lifetime& other : lifetimes) {
      if (is_alive(other)) alive += aligned(other.bytes);
    }
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      if (is_alive(lifetimes[i])) busiest[i] = std::max(busiest[i], alive);
    }
  }
  return busiest;
}

// Places the tensors in this order, each in the tightest gap that is left for it.
WorkspacePlan placed(const std::vector<Lifetime>& lifetimes, const std::vector<size_t>& order) {
  WorkspacePlan plan;
  plan.offsets.resize(lifetimes.size());
  std::vector<Span> taken;
  for (size_t placed = 0; placed < order.size(); ++placed) {
    size_t tensor = order[placed];
    size_t bytes = aligned(lifetimes[tensor].bytes);
    taken.clear();
    for (size_t i = 0; i < placed; ++i) {
      size_t other = order[i];
      if (!lifetimes[other].overlaps(lifetimes[tensor])) continue;
      taken.push_back({plan.offsets[other], plan.offsets[other] + aligned(lifetimes[other].bytes)});
    }
    plan.offsets[tensor] = best_offset(taken, bytes);
    plan.peak = std::max(plan.peak, plan.offsets[tensor] + bytes);
  }
  return plan;
}

}  // namespace

WorkspacePlan plan_workspace(const std::vector<Lifetime>& lifetimes) {
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].last_use < lifetimes[i].first_use) {
      fail("lifetimes[", i, "]: got last use ", lifetimes[i].last_use, " before first use ",
           lifetimes[i].first_use, ", wanted first <= last; record the tensor again");
    }
  }
  const std::vector<size_t> busiest = busiest_bytes(lifetimes);
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Equal sizes are ordered by first use: for tensors of one size that reaches the lower bound.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Lifetime &left = lifetimes[a], &right = lifetimes[b];
    return left.bytes != right.bytes ? left.bytes > right.bytes : left.first_use < right.first_use;
  });
  WorkspacePlan plan = placed(lifetimes, order);
  const size_t bound = busiest.empty() ? 0 : *std::max_element(busiest.begin(), busiest.end());
  if (plan.peak > bound) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return busiest[a] > busiest[b]; });
    WorkspacePlan other = placed(lifetimes, order);
    if (other.peak < plan.peak) plan = std::move(other);
  }
  plan.lower_bound = bound;
  return plan;
}

}  // namespace fusewire
