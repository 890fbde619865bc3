#include "train/tape_blocks.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"

namespace fusewire::train {
namespace {

struct Slot {
  std::shared_ptr<void> block;
  size_t bytes = 0;
  bool taken = false;
};

}  // namespace

struct TapeBlocks::State {
  // Takes a slot of at least `bytes`; returns its index and its block.
  std::pair<size_t, void*> take(size_t bytes, const Stream& on);
  void give_back(size_t index) noexcept;

  mutable std::mutex mutex;
  std::vector<Slot> slots;
  std::optional<Stream> stream;
  uint64_t generation = 0;
};

std::pair<size_t, void*> TapeBlocks::State::take(size_t bytes, const Stream& on) {
  const std::lock_guard lock(mutex);
  if (!stream) stream = on;
  if (stream->device != on.device || stream->handle != on.handle) {
    fail("TapeBlocks: got another stream than before, wanted one whose work comes one after the ",
         "other; make others for it");
  }
  auto slot = std::find_if(slots.begin(), slots.end(), [](const Slot& s) { return !s.taken; });
  if (slot == slots.end()) slot = slots.emplace(slot);
  if (!slot->block || slot->bytes < bytes) {
    if (slot->block) ++generation;
    *slot = {};
    slot->block = default_allocator(on.device).allocate_uncached(bytes, "training", on);
    slot->bytes = bytes;
  }
  slot->taken = true;
  return {static_cast<size_t>(slot - slots.begin()), slot->block.get()};
}

void TapeBlocks::State::give_back(size_t index) noexcept {
  const std::lock_guard lock(mutex);
  slots[index].taken = false;
}

TapeBlocks::TapeBlocks() : state_(std::make_shared<State>()) {}

std::shared_ptr<void> TapeBlocks::take(size_t bytes, const Stream& stream) {
  const auto [index, data] = state_->take(bytes, stream);
  return {data, [state = state_, slot = index](void*) noexcept { state->give_back(slot); }};
}

uint64_t TapeBlocks::generation() const {
  const std::lock_guard lock(state_->mutex);
  return state_->generation;
}

size_t TapeBlocks::bytes() const {
  const std::lock_guard lock(state_->mutex);
  size_t sum = 0;
  for (const Slot& slot : state_->slots) sum += slot.bytes;
  return sum;
}

}  // namespace fusewire::train
