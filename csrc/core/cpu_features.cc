#include "core/cpu_features.h"

#ifdef __x86_64__
#include <cpuid.h>

#include <cstdint>

namespace fusewire {
namespace {

struct Features {
  uint32_t leaf_1_ecx = 0;
  uint32_t leaf_7_ebx = 0;
  uint32_t saved = 0;  // XCR0: registers that the operating system saves
  uint32_t leaf_7_ecx = 0;
  uint32_t leaf_7_1_eax = 0;
};

Features features() {
  Features found;
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) found.leaf_1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    found.leaf_7_ebx = b;
    found.leaf_7_ecx = c;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) found.leaf_7_1_eax = a;
  if (found.leaf_1_ecx & bit_OSXSAVE) {
    asm("xgetbv" : "=a"(found.saved), "=d"(d) : "c"(0));
  }
  return found;
}

// Returns whether the CPU and the operating system have every feature in `wanted`.
bool has(Features wanted) {
  static const Features here = features();
  return !(wanted.leaf_1_ecx & ~here.leaf_1_ecx) && !(wanted.leaf_7_ebx & ~here.leaf_7_ebx) &&
         !(wanted.leaf_7_ecx & ~here.leaf_7_ecx) && !(wanted.leaf_7_1_eax & ~here.leaf_7_1_eax) &&
         !(wanted.saved & ~here.saved);
}

}  // namespace

bool cpu_has_avx2() {
  return has({bit_FMA, bit_AVX2, 0x06});  // XMM, YMM
}

bool cpu_has_avx512() {
  return has({bit_FMA, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL,
              0xe6});  // XMM, YMM, masks, both halves of ZMM
}

bool cpu_has_avx512_vnni() {
  Features wanted;
  wanted.leaf_7_ecx = bit_AVX512VNNI;
  return cpu_has_avx512() && has(wanted);
}

bool cpu_has_avx512_bf16() {
  Features wanted;
  wanted.leaf_7_1_eax = bit_AVX512BF16;
  return cpu_has_avx512() && has(wanted);
}

}  // namespace fusewire
#endif
