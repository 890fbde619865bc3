#include "python/device.h"

#include "core/error.h"

namespace fusewire {

Device device_named(const std::string& name) {
  if (name == "cpu") return {};
  const bool cuda = name.rfind("cuda", 0) == 0;
  if (cuda && name.size() == 4) return {DeviceType::kCuda, 0};
  if (cuda && name.size() == 6 && name[4] == ':' && name[5] >= '0' && name[5] <= '9') {
    return {DeviceType::kCuda, name[5] - '0'};
  }
  fail("device: got '", name, "', wanted 'cpu', 'cuda' or 'cuda:0' to 'cuda:9'");
}

}  // namespace fusewire
