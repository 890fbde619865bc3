#include "train/tape.h"

#include <algorithm>

namespace fusewire::train {

Tape::Tape(const Stream& stream) : stream_(stream) {
  stream_.recording = true;
  scratch_.begin_recording(stream.device);
}

Tape::Tape(std::shared_ptr<const WorkspaceProgram> program, std::shared_ptr<void> block,
           const Stream& stream)
    : stream_(stream), program_(std::move(program)), block_(std::move(block)) {
  scratch_.begin(program_.get(), static_cast<char*>(block_.get()), stream.device);
}

std::shared_ptr<const WorkspaceProgram> Tape::take_recorded() {
  scratch_.finish();
  return std::make_shared<const WorkspaceProgram>(scratch_.take_recorded());
}

TapePlans::Program TapePlans::find(const Key& key) {
  const auto at = std::find_if(plans_.begin(), plans_.end(),
                               [&](const auto& entry) { return entry.first == key; });
  if (at == plans_.end()) return nullptr;
  plans_.splice(plans_.begin(), plans_, at);
  return plans_.front().second;
}

TapePlans::Program TapePlans::remember(const Key& key, Program program) {
  if (plans_.size() == max_plans_) plans_.pop_back();
  plans_.emplace_front(key, program);
  const WorkspacePlan& plan = program->plan;
  ++stats_.plans_recorded;
  if (plan.peak > stats_.peak_bytes) {
    stats_.peak_bytes = plan.peak;
    stats_.lower_bound_bytes = plan.lower_bound;
  }
  if (plan.lower_bound > 0) {
    stats_.worst_ratio = std::max(
        stats_.worst_ratio, static_cast<double>(plan.peak) / static_cast<double>(plan.lower_bound));
  }
  return program;
}

}  // namespace fusewire::train
