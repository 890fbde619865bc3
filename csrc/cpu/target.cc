// Registers the kernels of one CPU instruction set (this file is compiled once for each).
#include "core/cpu_features.h"
#include "core/kernels.h"
#include "core/training_kernels.h"
#include "cpu/gemm.h"

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

constexpr Target kTarget = {FUSEWIRE_TEXT(FUSEWIRE_TARGET),
                            DeviceType::kCpu,
                            FUSEWIRE_VEC_BYTES,
                            usable,
                            DType::kFloat32,
                            &kFloat32,
                            &kTraining};

// CPUs with more instructions for matrix products have targets of their own, which share all other
// kernels.
#if FUSEWIRE_VEC_BYTES == 64
constexpr Kernels with_products(const char* (*target_name)(),
                                const GemmKernels* (*gemm)(Format format)) {
  Kernels kernels = kFloat32;
  kernels.target_name = target_name;
  kernels.gemm = gemm;
  return kernels;
}

const char* vnni_name() {
  return "avx512_vnni";
}
constexpr Kernels kVnni = with_products(vnni_name, gemm_vnni);
const char* bf16_name() {
  return "avx512_bf16";
}
constexpr Kernels kBf16 = with_products(bf16_name, gemm_bf16);

struct Variant {
  const Kernels& kernels;
  bool (*usable)();
};
// Slowest first. Every CPU with BF16 has VNNI; it is checked all the same.
constexpr Variant kVariants[] = {
    {kVnni, cpu_has_avx512_vnni},
    {kBf16, [] { return cpu_has_avx512_vnni() && cpu_has_avx512_bf16(); }},
};
#endif

const bool registered = [] {
  register_target(kTarget);
#if FUSEWIRE_VEC_BYTES == 64
  Target target = kTarget;
  for (const Variant& variant : kVariants) {
    target.name = variant.kernels.target_name();
    ++target.rank;
    target.usable = variant.usable;
    target.kernels = &variant.kernels;
    register_target(target);
  }
#endif
  return true;
}();

}  // namespace
}  // namespace fusewire::FUSEWIRE_TARGET
