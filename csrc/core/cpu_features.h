// Which instruction sets this processor has and the system saves the registers of. Asked by CPUID:
// __builtin_cpu_supports says no to everything where the compiler's own runtime library leaves it
// out (zig).
#pragma once

namespace fusewire {

bool cpu_has_avx2();    // and FMA
bool cpu_has_avx512();  // F, BW, DQ, VL, and FMA
bool cpu_has_avx512_vnni();
bool cpu_has_avx512_bf16();

}  // namespace fusewire
