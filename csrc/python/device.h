// Devices by name.
#pragma once

#include <string>

#include "core/device.h"

namespace fusewire {

// Returns the device "cpu", "cuda" (the first) or "cuda:<index>". Throws Error for anything else.
Device device_named(const std::string& name);

}  // namespace fusewire
