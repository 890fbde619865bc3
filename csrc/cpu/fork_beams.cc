// The next rows of groups of beams (ops.def, fork_beams), one group at a time.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/kernels.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

void expect_inside(const ForkArguments& a, int64_t index) {
  const ForkedGroup& group = a.groups[index];
  const auto fits = [&](int64_t first, int64_t count, int64_t room) {
    return first >= 0 && first + count <= room;
  };
  if (group.beams < 1 || group.beams > 512 || !fits(group.candidates, 1, a.searches) ||
      !fits(group.parents, group.beams, a.parent_rows) ||
      !fits(group.children, group.beams, a.rows) || !fits(group.place, 1, a.width)) {
    fail("fork_beams: groups[", index, "]: got search ", group.candidates, ", parents from ",
         group.parents, ", children from ", group.children, ", ", group.beams, " beams and place ",
         group.place, ", wanted 1 to 512 beams within ", a.searches, " searches, ", a.parent_rows,
         " parents, ", a.rows, " rows and ", a.width, " places");
  }
}

bool ends_text(const ForkArguments& a, int64_t index, int32_t token) {
  for (int64_t i = 0; i < a.most_ends; ++i) {
    if (a.ends[index * a.most_ends + i] == token) return true;
  }
  return false;
}

void fork_group(const ForkArguments& a, int64_t index) {
  const ForkedGroup& group = a.groups[index];
  const auto beams = static_cast<size_t>(group.beams);
  std::vector<size_t> parents;
  int64_t* const ids = a.ids + group.children;
  float* const beam_scores = a.beam_scores + group.children;
  for (int64_t i = group.candidates * a.most; i < (group.candidates + 1) * a.most; ++i) {
    if (parents.size() == beams) break;
    if (a.beams[i] < 0 || a.beams[i] >= group.beams || ends_text(a, index, a.tokens[i])) continue;
    ids[parents.size()] = a.tokens[i];
    beam_scores[parents.size()] = a.scores[i];
    parents.push_back(static_cast<size_t>(a.beams[i]));
  }
  while (parents.size() < beams) {
    ids[parents.size()] = 0;
    beam_scores[parents.size()] = -INFINITY;
    parents.push_back(parents.size());
  }
  std::vector<bool> alive(beams), met(beams);
  for (const size_t parent : parents) alive[parent] = true;
  const auto parent_row = [&](size_t beam) {
    return a.parent_table + (group.parents + static_cast<int64_t>(beam)) * a.width;
  };
  size_t dead = 0;  // the next beam without children
  for (size_t i = 0; i < beams; ++i) {
    const int64_t row = group.children + static_cast<int64_t>(i);
    const int32_t* const from = parent_row(parents[i]);
    int32_t* const to = a.block_table + row * a.width;
    std::memcpy(to, from, static_cast<size_t>(a.width) * sizeof(int32_t));
    if (a.fresh[row] >= 0) {
      to[group.place] = a.fresh[row];
    } else if (met[parents[i]]) {
      while (alive[dead]) ++dead;
      to[group.place] = parent_row(dead++)[group.place];
      a.copy_from[row] = from[group.place];
      a.copy_to[row] = to[group.place];
    }
    met[parents[i]] = true;
  }
}

}  // namespace

void fork_beams(const ForkArguments& a, const Stream&) {
  for (int64_t row = 0; row < a.rows; ++row) a.copy_from[row] = a.copy_to[row] = -1;
  for (int64_t g = 0; g < a.group_count; ++g) {
    expect_inside(a, g);
    fork_group(a, g);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
