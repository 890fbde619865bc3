// The JSON of `sampling_parameters`, where nothing in it but max_new_tokens says how long it takes.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sampling_parameters {

// An object of numbers and flags that a request may surely have (backend/fusewire/generation):
// false, where one is unknown here, or may be invalid. `new_tokens`: as it says, or 0.
bool read(const char* text, size_t bytes, uint64_t* new_tokens);

}  // namespace sampling_parameters
