// Reads the JSON of `sampling_parameters`, if it is as simple as it mostly is.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sampling_parameters {

// 0: not given
struct Given {
  uint64_t new_tokens = 0;
  double timeout_s = 0;
  bool has_priority = false;
  int64_t priority = 0;
};

// Reads an object of numbers and flags that are valid in any request (backend/fusewire/generation).
// Returns false if one is not known here, or may be invalid.
bool read(const char* text, size_t bytes, Given* given);

}  // namespace sampling_parameters
