// The JSON of `sampling_parameters`, where it is as simple as most are.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sampling_parameters {

// 0 where the object does not say.
struct Given {
  uint64_t new_tokens = 0;
  double timeout_s = 0;
  bool has_priority = false;
  int64_t priority = 0;
};

// An object of numbers and flags that a request may surely have (backend/fusewire/generation):
// false, where one is unknown here, or may be invalid.
bool read(const char* text, size_t bytes, Given* given);

}  // namespace sampling_parameters
