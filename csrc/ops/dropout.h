// Checks of the arguments of a dropout.
#pragma once

#include "core/check.h"
#include "core/dropout.h"

namespace fusewire::ops {

// Error unless the probability is in [0, 1).
void expect_probability(const Check& check, const Dropout& dropout);

}  // namespace fusewire::ops
