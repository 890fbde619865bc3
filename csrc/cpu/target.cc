// Registers the kernels of one CPU instruction set (this file is compiled once for each).
#include "core/cpu_features.h"
#include "core/kernels.h"
#include "core/training_kernels.h"

#define FUSEWIRE_TEXT_(x) #x
#define FUSEWIRE_TEXT(x) FUSEWIRE_TEXT_(x)

namespace fusewire::FUSEWIRE_TARGET {

#define KERNEL(result, name, arguments) result name arguments;
#include "core/kernels.inc"
#include "core/training_kernels.inc"
#undef KERNEL

const char* target_name() {
  return FUSEWIRE_TEXT(FUSEWIRE_TARGET);
}

namespace {

bool usable() {
#if FUSEWIRE_VEC_BYTES == 64
  return cpu_has_avx512();
#elif FUSEWIRE_VEC_BYTES == 32
  return cpu_has_avx2();
#else
  return true;
#endif
}

constexpr Kernels kFloat32 = {
#define KERNEL(result, name, arguments) name,
#include "core/kernels.inc"
#undef KERNEL
};

constexpr TrainingKernels kTraining = {
#define KERNEL(result, name, arguments) name,
#include "core/training_kernels.inc"
#undef KERNEL
};

const bool registered = [] {
  register_target({FUSEWIRE_TEXT(FUSEWIRE_TARGET), DeviceType::kCpu, FUSEWIRE_VEC_BYTES, usable,
                   DType::kFloat32, &kFloat32, &kTraining});
  return true;
}();

}  // namespace
}  // namespace fusewire::FUSEWIRE_TARGET
