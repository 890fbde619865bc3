// What this target implements: one template a kernel, defined and instantiated in the family files.
#pragma once

#include "core/kernels.h"
#include "core/training_kernels.h"

namespace fusewire::cuda {

#define KERNEL(result, name, arguments) \
  template <class T>                    \
  result name arguments;
#include "core/kernels.inc"
#include "core/training_kernels.inc"
#undef KERNEL

}  // namespace fusewire::cuda
