#include "core/kernels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>

#include "core/error.h"
#include "core/training_kernels.h"

namespace fusewire {
namespace {

struct Registry {
  std::mutex mutex;            // guards all except reading a choice that was made
  std::deque<Target> targets;  // a deque, so that their addresses stay valid
  std::string forced_cpu_target;
  // The choice for each (device, dtype), made on first use.
  std::array<std::array<std::atomic<const Target*>, kDTypeCount>, kDeviceTypeCount> chosen{};
};

Registry& registry() {
  static Registry instance;
  return instance;
}

// Returns the usable target of the highest rank, or null. The caller holds the registry's lock.
const Target* best(const Registry& r, DeviceType device, const DType* dtype) {
  const Target* found = nullptr;
  for (const Target& target : r.targets) {
    if (target.device != device || (dtype && target.dtype != *dtype) || !target.usable()) continue;
    if (device == DeviceType::kCpu && !r.forced_cpu_target.empty() &&
        r.forced_cpu_target != target.name) {
      continue;
    }
    if (!found || target.rank > found->rank) found = &target;
  }
  return found;
}

const Target& target_for(Device device, DType dtype) {
  Registry& r = registry();
  auto& slot = r.chosen[static_cast<int>(device.type)][static_cast<int>(dtype)];
  if (const Target* made = slot.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(r.mutex);
  const Target* target = best(r, device.type, &dtype);
  if (!target) {
    fail("dtype: got ", name_of(dtype), " on ", device.text(),
         ", for which this build has no kernels; use float32 on the CPU");
  }
  slot.store(target, std::memory_order_release);
  return *target;
}

}  // namespace

void register_target(const Target& target) {
  const std::lock_guard lock(registry().mutex);
  registry().targets.push_back(target);
}

const Kernels& kernels_for(Device device, DType dtype) {
  return *target_for(device, dtype).kernels;
}

const TrainingKernels& training_kernels_for(Device device, DType dtype) {
  const TrainingKernels* training = target_for(device, dtype).training;
  if (!training) {
    fail("training: got ", name_of(dtype), " on ", device.text(),
         ", for which this build has no training kernels; wanted float32 on the CPU");
  }
  return *training;
}

std::vector<std::string> cpu_targets() {
  const std::lock_guard lock(registry().mutex);
  std::vector<Target> usable;
  for (const Target& target : registry().targets) {
    if (target.device == DeviceType::kCpu && target.usable()) usable.push_back(target);
  }
  std::sort(usable.begin(), usable.end(),
            [](const Target& a, const Target& b) { return a.rank < b.rank; });
  std::vector<std::string> names;
  for (const Target& target : usable) {
    if (std::find(names.begin(), names.end(), target.name) == names.end()) {
      names.push_back(target.name);
    }
  }
  return names;
}

std::string cpu_target() {
  const std::lock_guard lock(registry().mutex);
  const Target* target = best(registry(), DeviceType::kCpu, nullptr);
  return target ? target->name : "none";
}

void set_cpu_target(std::string_view name) {
  const auto names = cpu_targets();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& usable : names) known += (known.empty() ? "" : ", ") + usable;
    fail("cpu target: got '", name, "', wanted one that this machine can run: ", known);
  }
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.forced_cpu_target = name;
  for (auto& of_device : r.chosen) {
    for (auto& slot : of_device) slot.store(nullptr, std::memory_order_release);
  }
}

}  // namespace fusewire
