// Tape: the tensors of one forward and of its backward in one block of memory.
//
// A dry run of both records when each tensor is alive (core/workspace.h); what the forward saves is
// a tensor that it does not release. The block belongs to the tape, so that several forwards may be
// in flight, and goes back with it to where it was taken from.
#pragma once

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/workspace.h"

namespace fusewire::train {

class Tape {
 public:
  // For a dry run: tensors have no memory.
  explicit Tape(const Stream& stream);
  // block: as large as the peak of the plan, and used by nothing else while the tape lives.
  Tape(std::shared_ptr<const WorkspaceProgram> program, std::shared_ptr<void> block,
       const Stream& stream);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Scratch& scratch() { return scratch_; }
  const Stream& stream() const { return stream_; }  // recording in a dry run
  // Error when not all that was planned has been created and released.
  void finish() const { scratch_.finish(); }
  std::shared_ptr<const WorkspaceProgram> take_recorded();

 private:
  Stream stream_;
  std::shared_ptr<const WorkspaceProgram> program_;
  std::shared_ptr<void> block_;
  Scratch scratch_;
};

struct TapeStats {
  size_t peak_bytes = 0;  // of the largest plan so far, and its liveness lower bound
  size_t lower_bound_bytes = 0;
  double worst_ratio = 1;  // peak over lower bound, of all plans so far
  uint64_t plans_recorded = 0;
};

// The plans of one computation by the numbers that decide which tensors it creates; the least
// recently used one goes when there are too many.
class TapePlans {
 public:
  using Key = std::vector<int64_t>;
  using Program = std::shared_ptr<const WorkspaceProgram>;

  explicit TapePlans(size_t max_plans = 256) : max_plans_(max_plans) {}

  // The plan of a key; for a new one record() makes it.
  template <class Record>
  Program plan(const Key& key, Record&& record) {
    if (Program known = find(key)) return known;
    return remember(key, record());
  }
  const TapeStats& stats() const { return stats_; }

 private:
  Program find(const Key& key);
  Program remember(const Key& key, Program program);

  size_t max_plans_;
  std::list<std::pair<Key, Program>> plans_;  // most recently used first
  TapeStats stats_;
};

}  // namespace fusewire::train
