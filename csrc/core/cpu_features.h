// Which instruction sets this processor has, with registers that the operating system saves. They
// are queried by CPUID: __builtin_cpu_supports returns false for all of them where the compiler's
// own runtime library lacks it (zig).
#pragma once

namespace fusewire {

bool cpu_has_avx2();    // and FMA
bool cpu_has_avx512();  // F, BW, DQ, VL, and FMA
bool cpu_has_avx512_vnni();
bool cpu_has_avx512_bf16();

}  // namespace fusewire
