// The kernels that this target implements. Each is a template over the element type, defined and
// instantiated in the file of its family.
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
