// TapeBlocks: memory of tapes that one stream fills one after the other, as a training loop does
// whose steps are recorded: a recording holds addresses, so each would otherwise need memory of its
// own.
//
// A new tape takes the first slot that no living tape has. So the same tapes in the same order find
// the same slots, and what was large enough once remains so. A slot's block that is too small is
// freed before a larger one is allocated, and the generation changes: the addresses of earlier
// tapes are then invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/stream.h"

namespace fusewire::train {

class TapeBlocks {
 public:
  TapeBlocks();

  // A block of at least `bytes`, taken until the last copy of the pointer is destroyed, which may
  // be after TapeBlocks is. Error for another stream than before, and when the device has too
  // little memory.
  std::shared_ptr<void> take(size_t bytes, const Stream& stream);

  uint64_t generation() const;
  size_t bytes() const;  // of all slots

 private:
  struct State;  // shared with the tapes, which may live longer
  std::shared_ptr<State> state_;
};

}  // namespace fusewire::train
