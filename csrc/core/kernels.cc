#include "core/kernels.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace fusewire {
namespace {

struct Registry {
  std::vector<Target> targets;
  std::string forced_cpu_target;
  // The choice for each (device, dtype), made on first use.
  std::array<std::array<const Kernels*, kDTypeCount>, kDeviceTypeCount> chosen{};
};

Registry& registry() {
  static Registry instance;
  return instance;
}

const Target* best(DeviceType device, const DType* dtype) {
  const Registry& r = registry();
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

}  // namespace

void register_target(const Target& target) {
  registry().targets.push_back(target);
}

const Kernels& kernels_for(Device device, DType dtype) {
  const Kernels*& slot = registry().chosen[static_cast<int>(device.type)][static_cast<int>(dtype)];
  if (!slot) {
    const Target* target = best(device.type, &dtype);
    if (!target) {
      fail("dtype: got ", name_of(dtype), " on ", device.text(),
           ", for which this build has no kernels; use float32 on the CPU");
    }
    slot = target->kernels;
  }
  return *slot;
}

std::vector<std::string> cpu_targets() {
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
  const Target* target = best(DeviceType::kCpu, nullptr);
  return target ? target->name : "none";
}

void set_cpu_target(std::string_view name) {
  const auto names = cpu_targets();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& usable : names) known += (known.empty() ? "" : ", ") + usable;
    fail("cpu target: got '", name, "', wanted one that this machine can run: ", known);
  }
  registry().forced_cpu_target = name;
  registry().chosen = {};
}

}  // namespace fusewire
