// Blocks that were freed while streams other than their own may still use them: they are neither
// live nor free until those streams have passed the points at which that happened.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/stream_memory.h"

namespace fusewire {

using StreamPoints = std::vector<std::pair<StreamMemory*, uint64_t>>;

inline bool all_passed(const StreamPoints& points) noexcept {
  for (auto [stream, point] : points) {
    if (!stream->passed(point) && !(stream->poll(), stream->passed(point))) return false;
  }
  return true;
}

class WaitingBlocks {
 public:
  void add(Block* block, StreamPoints points) {
    bytes_ += block->bytes;
    waiting_.push_back({block, std::move(points)});
  }

  // Removes every block whose points are passed and calls settle(block).
  template <class Settle>
  void take_passed(Settle settle) {
    take_if([](const StreamPoints& points) { return all_passed(points); }, settle);
  }

  template <class Settle>
  void take_all(Settle settle) {
    take_if([](const StreamPoints&) { return true; }, settle);
  }

  size_t blocks() const { return waiting_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    Block* block;
    StreamPoints points;
  };

  template <class Accept, class Settle>
  void take_if(Accept accept, Settle settle) {
    for (size_t i = 0; i < waiting_.size();) {
      if (!accept(waiting_[i].points)) {
        ++i;
        continue;
      }
      Block* block = waiting_[i].block;
      std::swap(waiting_[i], waiting_.back());
      waiting_.pop_back();
      bytes_ -= block->bytes;
      settle(block);
    }
  }

  std::vector<Waiting> waiting_;
  size_t bytes_ = 0;
};

}  // namespace fusewire
