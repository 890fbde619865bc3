#include "core/workspace.h"

#include <algorithm>

#include "core/error.h"
#include "core/poison.h"

namespace fusewire {
namespace {

constexpr size_t kArenaStep = size_t{2} << 20;

// Rounds up to steps of an eighth of the next lower power of two, at least 2 MiB: at most an eighth
// is wasted, and the arena grows at most eight times while the need doubles.
size_t arena_size(size_t bytes) {
  size_t step = kArenaStep;
  while (step * 16 <= bytes) step *= 2;
  return round_up(bytes, step);
}

}  // namespace

ScratchTensor& ScratchTensor::operator=(ScratchTensor&& other) noexcept {
  if (this == &other) return *this;
  release();
  scratch_ = std::exchange(other.scratch_, nullptr);
  run_ = other.run_;
  index_ = other.index_;
  tensor_ = std::move(other.tensor_);
  other.tensor_.data = nullptr;
  return *this;
}

void ScratchTensor::release() noexcept {
  if (scratch_) scratch_->release(index_, run_);
  scratch_ = nullptr;
  tensor_.data = nullptr;
}

ScratchTensor Scratch::tensor(const Shape& shape, DType dtype) {
  size_t bytes = checked_bytes(shape, dtype);
  void* data = nullptr;
  if (recording()) {
    auto now = static_cast<int64_t>(recorded_.events.size());
    recorded_.lifetimes.push_back({bytes, now, now});
    recorded_.events.push_back(created_);
  } else {
    bool as_planned = !diverged_ && event_ < planned_->events.size() &&
                      planned_->events[event_] == created_ &&
                      planned_->lifetimes[created_].bytes == bytes;
    if (!as_planned) fail_diverged("asks for " + bytes_text(bytes));
    data = arena_ + planned_->plan.offsets[created_];
    unpoison(device_, data, bytes);
  }
  ++event_;
  ++open_;
  return {this, run_, created_++, Tensor(data, shape, dtype, device_)};
}

void Scratch::release(int32_t index, uint64_t run) noexcept {
  if (run != run_) return;
  --open_;
  if (recording()) {
    recorded_.lifetimes[index].last_use = static_cast<int64_t>(recorded_.events.size());
    recorded_.events.push_back(~index);
  } else {
    diverged_ |= event_ >= planned_->events.size() || planned_->events[event_] != ~index;
    poison(device_, arena_ + planned_->plan.offsets[index], planned_->lifetimes[index].bytes);
  }
  ++event_;
}

void Scratch::begin_recording(Device device) {
  begin(nullptr, nullptr, device);
  recorded_ = {};
}

void Scratch::begin(const WorkspaceProgram* planned, char* arena, Device device) {
  planned_ = planned;
  arena_ = arena;
  device_ = device;
  ++run_;
  event_ = 0;
  created_ = 0;
  open_ = 0;
  diverged_ = false;
  if (planned) poison(device, arena, planned->plan.peak);
}

void Scratch::finish() const {
  if (open_) {
    fail("scratch: got ", open_, " tensors still held when forward returned, wanted none; scratch ",
         "memory lives for one run, copy what must stay");
  }
  if (recording()) return;
  if (diverged_) fail_diverged("releases tensors in another order");
  if (event_ != planned_->events.size()) fail_diverged("ends early");
}

WorkspaceProgram Scratch::take_recorded() {
  recorded_.plan = plan_workspace(recorded_.lifetimes);
  return std::move(recorded_);
}

void Scratch::fail_diverged(const std::string& what) const {
  auto next = static_cast<size_t>(created_);
  size_t planned = planned_->lifetimes.size();
  fail("scratch: got a run that ", what, " after ", next, " tensors, wanted the ", planned,
       " tensors of the dry run in the same order, next ",
       next < planned ? bytes_text(planned_->lifetimes[next].bytes) : std::string("none"),
       "; put what decides about them into the key");
}

Workspace::Workspace(CachingAllocator& allocator, int shrink_after, size_t max_plans)
    : allocator_(allocator), shrink_after_(shrink_after), max_plans_(max_plans) {
  if (shrink_after < 1 || max_plans < 1) {
    fail("workspace: got shrink_after ", shrink_after, " and max_plans ", max_plans,
         ", wanted at least 1; leave them out for the defaults");
  }
}

std::unique_lock<std::mutex> Workspace::wait_for_turn() const {
  if (runner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    fail(
        "workspace: got a run inside a run, wanted one at a time; pass the outer run's Scratch on");
  }
  return std::unique_lock(mutex_);
}

Workspace::Turn::Turn(Workspace& workspace, const Stream& stream)
    : workspace_(workspace), lock_(workspace.wait_for_turn()) {
  if (stream.device != workspace.allocator_.device()) {
    fail("workspace: got a stream on ", stream.device.text(), ", wanted ",
         workspace.allocator_.device().text(), "; make the workspace from that device's allocator");
  }
  if (workspace.stats_.runs && stream.handle != workspace.stream_.handle) {
    fail("workspace: got another stream than before, wanted one workspace a stream; make a second ",
         "workspace");
  }
  workspace.stream_ = stream;
  ++workspace.stats_.runs;
  workspace.runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

Workspace::Turn::~Turn() {
  workspace_.scratch_.close();
  workspace_.stats_.plans = workspace_.programs_.size();
  workspace_.runner_.store(std::thread::id(), std::memory_order_relaxed);
  std::lock_guard lock(workspace_.published_mutex_);
  workspace_.published_ = workspace_.stats_;
}

const WorkspaceProgram* Workspace::find(const WorkspaceKey& key) {
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  programs_.splice(programs_.begin(), programs_, found->second);
  return &found->second->second;
}

const WorkspaceProgram* Workspace::remember(const WorkspaceKey& key, WorkspaceProgram program) {
  if (programs_.size() == max_plans_) {
    by_key_.erase(programs_.back().first);
    programs_.pop_back();
  }
  programs_.emplace_front(key, std::move(program));
  by_key_[key] = programs_.begin();

  const WorkspacePlan& plan = programs_.front().second.plan;
  ++stats_.plans_recorded;
  if (plan.peak >= stats_.peak_bytes) {
    stats_.peak_bytes = plan.peak;
    stats_.lower_bound_bytes = plan.lower_bound;
  }
  if (plan.lower_bound) {
    double ratio = static_cast<double>(plan.peak) / static_cast<double>(plan.lower_bound);
    stats_.worst_ratio = std::max(stats_.worst_ratio, ratio);
  }
  return &programs_.front().second;
}

// Makes the arena hold `bytes`. It shrinks only after a window of runs that all stayed under half,
// so that alternating long and short batches do not resize it.
void Workspace::fit(size_t bytes) {
  high_water_ = std::max(high_water_, bytes);
  if (bytes > stats_.arena_bytes) {
    ++stats_.growths;  // first: if memory is short, the old arena is gone all the same
    grow(bytes);
  } else if (++window_runs_ >= shrink_after_) {
    size_t needed = arena_size(high_water_);
    if (high_water_ < stats_.arena_bytes / 2 && needed < stats_.arena_bytes) {
      ++stats_.shrinks;
      resize(needed);
    }
    window_runs_ = 0;
    high_water_ = bytes;
  }
}

void Workspace::grow(size_t bytes) {
  size_t step = arena_size(bytes);
  try {
    resize(step);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory || step == bytes) throw;
    resize(bytes);  // near the cap, the exact size may still fit
  }
}

// Releases the old arena first: two at once would be a peak that was not planned.
void Workspace::resize(size_t bytes) {
  arena_.reset();
  stats_.arena_bytes = 0;
  if (bytes) arena_ = allocator_.allocate_uncached(bytes, "workspace", stream_);
  stats_.arena_bytes = bytes;
}

uint64_t Workspace::generation() const {
  std::lock_guard lock(published_mutex_);
  return published_.growths + published_.shrinks;
}

WorkspaceStats Workspace::stats() const {
  std::lock_guard lock(published_mutex_);
  return published_;
}

std::vector<std::pair<WorkspaceKey, WorkspaceProgram>> Workspace::programs() const {
  std::unique_lock lock = wait_for_turn();
  return {programs_.begin(), programs_.end()};
}

size_t Workspace::KeyHash::operator()(const WorkspaceKey& key) const {
  uint64_t hash = reinterpret_cast<uintptr_t>(key.layer);
  for (int64_t part : {key.a, key.b, key.c}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace fusewire
