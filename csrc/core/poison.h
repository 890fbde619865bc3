// Marks memory that must not be accessed for AddressSanitizer: free blocks, released scratch
// tensors and the padding after both. Does nothing in an ordinary build.
#pragma once

#include <cstddef>

#include "core/device.h"

#if defined(__SANITIZE_ADDRESS__)
#define FUSEWIRE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUSEWIRE_ASAN 1
#endif
#endif

#ifdef FUSEWIRE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace fusewire {

// Only host memory has a shadow.
inline void poison([[maybe_unused]] Device device, [[maybe_unused]] const void* data,
                   [[maybe_unused]] size_t bytes) {
#ifdef FUSEWIRE_ASAN
  if (device.type == DeviceType::kCpu && data) __asan_poison_memory_region(data, bytes);
#endif
}

inline void unpoison([[maybe_unused]] Device device, [[maybe_unused]] const void* data,
                     [[maybe_unused]] size_t bytes) {
#ifdef FUSEWIRE_ASAN
  if (device.type == DeviceType::kCpu && data) __asan_unpoison_memory_region(data, bytes);
#endif
}

}  // namespace fusewire
