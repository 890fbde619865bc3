// A device by its name.
#pragma once

#include <string>

#include "core/device.h"

namespace fusewire {

// "cpu", "cuda" (the first) or "cuda:<index>"; Error for anything else.
Device device_named(const std::string& name);

}  // namespace fusewire
