// Hopper's warpgroup matrix product (PTX ISA, "wgmma.mma_async"): four warps multiply a 64 x 16
// tile A, from shared memory or registers, by a 16 x N tile B from shared memory into fp32
// registers.
//
// Fragments, per thread of the warpgroup (w = thread / 32 % 4, l = thread % 32): d[4 j + 2 h + i]
// is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i. A in registers is the same with 16
// columns: a[2 j + h] holds the pair i = 0, 1 of columns 8 j + 2 (l % 4) + i, so packed neighbours
// of one product's d are the next one's a.
//
// Use: wgmma_fence(); wgmma<N, T>(...) some times; wgmma_commit(); wgmma_wait<pending>(). Between
// the fence and the wait nothing else may touch d.
//
// Of e4m3 a tile A is 64 x 32, in the same bytes: descriptors and d are as above, and A and B come
// from shared memory with their rows along k. Its sums keep some 14 bits, so that long ones are
// added up outside (sm90_gemm_sums.h).
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

// Of a tile whose rows hold 64 elements (128 bytes) along k, written by TMA (sm90_tma.h), at a
// multiple of 1024 bytes. The next 16 along k: + 2; the next 8 rows: + 64 (units of 16 bytes).
__device__ __forceinline__ uint64_t k_major_descriptor(const void* tile) {
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{64} << 32 | uint64_t{1} << 62;
}

// Of a B tile whose rows run along n (kTransposeB): row r is one k and holds 64 of the N columns,
// by TMA as above; the next 64 columns lie `column_step` bytes further. The next 16 along k: + 128.
__device__ __forceinline__ uint64_t n_major_descriptor(const void* tile, uint32_t column_step) {
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) |
         static_cast<uint64_t>((column_step & 0x3ffff) >> 4) << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After the wait: keeps the compiler from moving reads of d above it. (It sees d as written when
// the wgmma was issued; where reads move up, the assembler serialises every wgmma, warning C7514.)
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

namespace detail {
template <int N>
struct Wgmma;

// Accumulator operands of the instruction, four at a time: their names and their bindings.
// clang-format off
#define FUSEWIRE_NAMES_4 "%0, %1, %2, %3"
#define FUSEWIRE_NAMES_8 FUSEWIRE_NAMES_4 ", %4, %5, %6, %7"
#define FUSEWIRE_NAMES_12 FUSEWIRE_NAMES_8 ", %8, %9, %10, %11"
#define FUSEWIRE_NAMES_16 FUSEWIRE_NAMES_12 ", %12, %13, %14, %15"
#define FUSEWIRE_NAMES_20 FUSEWIRE_NAMES_16 ", %16, %17, %18, %19"
#define FUSEWIRE_NAMES_24 FUSEWIRE_NAMES_20 ", %20, %21, %22, %23"
#define FUSEWIRE_NAMES_28 FUSEWIRE_NAMES_24 ", %24, %25, %26, %27"
#define FUSEWIRE_NAMES_32 FUSEWIRE_NAMES_28 ", %28, %29, %30, %31"
#define FUSEWIRE_NAMES_36 FUSEWIRE_NAMES_32 ", %32, %33, %34, %35"
#define FUSEWIRE_NAMES_40 FUSEWIRE_NAMES_36 ", %36, %37, %38, %39"
#define FUSEWIRE_NAMES_44 FUSEWIRE_NAMES_40 ", %40, %41, %42, %43"
#define FUSEWIRE_NAMES_48 FUSEWIRE_NAMES_44 ", %44, %45, %46, %47"
#define FUSEWIRE_NAMES_52 FUSEWIRE_NAMES_48 ", %48, %49, %50, %51"
#define FUSEWIRE_NAMES_56 FUSEWIRE_NAMES_52 ", %52, %53, %54, %55"
#define FUSEWIRE_NAMES_60 FUSEWIRE_NAMES_56 ", %56, %57, %58, %59"
#define FUSEWIRE_NAMES_64 FUSEWIRE_NAMES_60 ", %60, %61, %62, %63"
#define FUSEWIRE_NAMES_68 FUSEWIRE_NAMES_64 ", %64, %65, %66, %67"
#define FUSEWIRE_NAMES_72 FUSEWIRE_NAMES_68 ", %68, %69, %70, %71"
#define FUSEWIRE_NAMES_76 FUSEWIRE_NAMES_72 ", %72, %73, %74, %75"
#define FUSEWIRE_NAMES_80 FUSEWIRE_NAMES_76 ", %76, %77, %78, %79"
#define FUSEWIRE_NAMES_84 FUSEWIRE_NAMES_80 ", %80, %81, %82, %83"
#define FUSEWIRE_NAMES_88 FUSEWIRE_NAMES_84 ", %84, %85, %86, %87"
#define FUSEWIRE_NAMES_92 FUSEWIRE_NAMES_88 ", %88, %89, %90, %91"
#define FUSEWIRE_NAMES_96 FUSEWIRE_NAMES_92 ", %92, %93, %94, %95"
#define FUSEWIRE_NAMES_100 FUSEWIRE_NAMES_96 ", %96, %97, %98, %99"
#define FUSEWIRE_NAMES_104 FUSEWIRE_NAMES_100 ", %100, %101, %102, %103"
#define FUSEWIRE_NAMES_108 FUSEWIRE_NAMES_104 ", %104, %105, %106, %107"
#define FUSEWIRE_NAMES_112 FUSEWIRE_NAMES_108 ", %108, %109, %110, %111"
#define FUSEWIRE_NAMES_116 FUSEWIRE_NAMES_112 ", %112, %113, %114, %115"
#define FUSEWIRE_NAMES_120 FUSEWIRE_NAMES_116 ", %116, %117, %118, %119"
#define FUSEWIRE_NAMES_124 FUSEWIRE_NAMES_120 ", %120, %121, %122, %123"
#define FUSEWIRE_NAMES_128 FUSEWIRE_NAMES_124 ", %124, %125, %126, %127"
#define FUSEWIRE_BIND_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FUSEWIRE_BIND_8 FUSEWIRE_BIND_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define FUSEWIRE_BIND_12 FUSEWIRE_BIND_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define FUSEWIRE_BIND_16 FUSEWIRE_BIND_12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define FUSEWIRE_BIND_20 FUSEWIRE_BIND_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define FUSEWIRE_BIND_24 FUSEWIRE_BIND_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define FUSEWIRE_BIND_28 FUSEWIRE_BIND_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define FUSEWIRE_BIND_32 FUSEWIRE_BIND_28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define FUSEWIRE_BIND_36 FUSEWIRE_BIND_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define FUSEWIRE_BIND_40 FUSEWIRE_BIND_36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define FUSEWIRE_BIND_44 FUSEWIRE_BIND_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define FUSEWIRE_BIND_48 FUSEWIRE_BIND_44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define FUSEWIRE_BIND_52 FUSEWIRE_BIND_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define FUSEWIRE_BIND_56 FUSEWIRE_BIND_52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define FUSEWIRE_BIND_60 FUSEWIRE_BIND_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define FUSEWIRE_BIND_64 FUSEWIRE_BIND_60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define FUSEWIRE_BIND_68 FUSEWIRE_BIND_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define FUSEWIRE_BIND_72 FUSEWIRE_BIND_68, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define FUSEWIRE_BIND_76 FUSEWIRE_BIND_72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define FUSEWIRE_BIND_80 FUSEWIRE_BIND_76, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define FUSEWIRE_BIND_84 FUSEWIRE_BIND_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define FUSEWIRE_BIND_88 FUSEWIRE_BIND_84, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define FUSEWIRE_BIND_92 FUSEWIRE_BIND_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define FUSEWIRE_BIND_96 FUSEWIRE_BIND_92, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define FUSEWIRE_BIND_100 FUSEWIRE_BIND_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define FUSEWIRE_BIND_104 FUSEWIRE_BIND_100, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define FUSEWIRE_BIND_108 FUSEWIRE_BIND_104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define FUSEWIRE_BIND_112 FUSEWIRE_BIND_108, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define FUSEWIRE_BIND_116 FUSEWIRE_BIND_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define FUSEWIRE_BIND_120 FUSEWIRE_BIND_116, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define FUSEWIRE_BIND_124 FUSEWIRE_BIND_120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define FUSEWIRE_BIND_128 FUSEWIRE_BIND_124, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
// clang-format on

#define FUSEWIRE_WGMMA_SHARED(N, R, R1, R2, R3, TYPE)                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2                                 \
               ", 0;\n"                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE          \
               " {" FUSEWIRE_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1, 0, %" #R3 ";\n}" \
               : FUSEWIRE_BIND_##R                                                      \
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB))
#define FUSEWIRE_WGMMA_FLOAT8(N, R, R1, R2)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2                    \
               ", 0;\n"                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #N                      \
               "k32.f32.e4m3.e4m3"                                         \
               " {" FUSEWIRE_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1;\n}" \
               : FUSEWIRE_BIND_##R                                         \
               : "l"(a), "l"(b), "r"(accumulate))
#define FUSEWIRE_WGMMA_REGISTERS(N, R, R1, R2, R3, R4, R5, R6, TYPE)                          \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5                                                \
      ", 0;\n"                                                                                \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FUSEWIRE_NAMES_##R \
      "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, %" #R6 ";\n}"           \
      : FUSEWIRE_BIND_##R                                                                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB))
// R = N / 2 accumulators; the numbers after it count on from there.
#define FUSEWIRE_WGMMA(N, R, R1, R2, R3, R4, R5, R6)                                              \
  template <>                                                                                     \
  struct Wgmma<N> {                                                                               \
    template <class T, int kTransposeB>                                                           \
    __device__ __forceinline__ static void run(float (&d)[R], uint64_t a, uint64_t b,             \
                                               int accumulate) {                                  \
      if constexpr (std::is_same_v<T, __half>) {                                                  \
        FUSEWIRE_WGMMA_SHARED(N, R, R1, R2, R3, "f16");                                           \
      } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {                                    \
        FUSEWIRE_WGMMA_FLOAT8(N, R, R1, R2);                                                      \
      } else {                                                                                    \
        FUSEWIRE_WGMMA_SHARED(N, R, R1, R2, R3, "bf16");                                          \
      }                                                                                           \
    }                                                                                             \
    template <class T, int kTransposeB>                                                           \
    __device__ __forceinline__ static void run(float (&d)[R], const uint32_t (&a)[4], uint64_t b, \
                                               int accumulate) {                                  \
      if constexpr (std::is_same_v<T, __half>) {                                                  \
        FUSEWIRE_WGMMA_REGISTERS(N, R, R1, R2, R3, R4, R5, R6, "f16");                            \
      } else {                                                                                    \
        FUSEWIRE_WGMMA_REGISTERS(N, R, R1, R2, R3, R4, R5, R6, "bf16");                           \
      }                                                                                           \
    }                                                                                             \
  };

// clang-format off
FUSEWIRE_WGMMA(8, 4, 5, 6, 7, 8, 9, 10)
FUSEWIRE_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
FUSEWIRE_WGMMA(24, 12, 13, 14, 15, 16, 17, 18)
FUSEWIRE_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
FUSEWIRE_WGMMA(40, 20, 21, 22, 23, 24, 25, 26)
FUSEWIRE_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
FUSEWIRE_WGMMA(56, 28, 29, 30, 31, 32, 33, 34)
FUSEWIRE_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
FUSEWIRE_WGMMA(72, 36, 37, 38, 39, 40, 41, 42)
FUSEWIRE_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
FUSEWIRE_WGMMA(88, 44, 45, 46, 47, 48, 49, 50)
FUSEWIRE_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
FUSEWIRE_WGMMA(104, 52, 53, 54, 55, 56, 57, 58)
FUSEWIRE_WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
FUSEWIRE_WGMMA(120, 60, 61, 62, 63, 64, 65, 66)
FUSEWIRE_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
FUSEWIRE_WGMMA(136, 68, 69, 70, 71, 72, 73, 74)
FUSEWIRE_WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
FUSEWIRE_WGMMA(152, 76, 77, 78, 79, 80, 81, 82)
FUSEWIRE_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
FUSEWIRE_WGMMA(168, 84, 85, 86, 87, 88, 89, 90)
FUSEWIRE_WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
FUSEWIRE_WGMMA(184, 92, 93, 94, 95, 96, 97, 98)
FUSEWIRE_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
FUSEWIRE_WGMMA(200, 100, 101, 102, 103, 104, 105, 106)
FUSEWIRE_WGMMA(208, 104, 105, 106, 107, 108, 109, 110)
FUSEWIRE_WGMMA(216, 108, 109, 110, 111, 112, 113, 114)
FUSEWIRE_WGMMA(224, 112, 113, 114, 115, 116, 117, 118)
FUSEWIRE_WGMMA(232, 116, 117, 118, 119, 120, 121, 122)
FUSEWIRE_WGMMA(240, 120, 121, 122, 123, 124, 125, 126)
FUSEWIRE_WGMMA(248, 124, 125, 126, 127, 128, 129, 130)
FUSEWIRE_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)
// clang-format on
#undef FUSEWIRE_WGMMA
}  // namespace detail

// d = A B + (accumulate ? d : 0); A is a descriptor or 4 registers of packed pairs, N a multiple of
// 8 up to 256. Without kTransposeB the rows of B's tile are its N columns, each along k.
template <int N, class T, bool kTransposeB = false, class A>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const A& a, uint64_t b, bool accumulate) {
  detail::Wgmma<N>::template run<T, kTransposeB ? 1 : 0>(d, a, b, accumulate ? 1 : 0);
}

}  // namespace fusewire::cuda::sm90
