// A device, on which memory is allocated and work runs.
#pragma once

#include <cstdint>
#include <string>

namespace fusewire {

enum class DeviceType : uint8_t { kCpu, kCuda };
inline constexpr int kDeviceTypeCount = 2;

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
  bool operator!=(const Device& other) const { return !(*this == other); }

  std::string text() const {
    return type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(index);
  }
};

}  // namespace fusewire
