// Hopper's warpgroup matrix product (PTX ISA, "wgmma.mma_async"): four warps multiply a 64 x 16
// tile A, in shared memory or registers, by a 16 x N tile B in shared memory, and accumulate in
// fp32 registers.
//
// Fragment layout, for a thread of the warpgroup with w = thread / 32 % 4 and l = thread % 32: d[4
// j + 2 h + i] is the element in row 16 w + l / 4 + 8 h and column 8 j + 2 (l % 4) + i. A in
// registers has the same layout with 16 columns: a[2 j + h] holds the pair i = 0, 1 of columns 8 j
// + 2 (l % 4) + i. Packed pairs of the d of one product are therefore the a of the next.
//
// Usage: wgmma_fence(); wgmma<N, T>(...) any number of times; wgmma_commit();
// wgmma_wait<pending>(). Nothing else may access d between the fence and the wait.
//
// For e4m3 and int8, a tile A is 64 x 32, which is the same number of bytes. Descriptors and d are
// as above; A and B must both be in shared memory with rows along k. The tensor cores accumulate
// e4m3 with some 14 bits only, so long sums are accumulated outside of them (sm90_gemm_stage.h);
// sums of int8 are exact, in int32.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

// Returns the descriptor of a tile whose rows hold 64 elements (128 bytes) along k, written by TMA
// (sm90_tma.h), at a multiple of 1024 bytes. In units of 16 bytes, add 2 for the next 16 elements
// along k and 64 for the next 8 rows.
__device__ __forceinline__ uint64_t k_major_descriptor(const void* tile) {
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{64} << 32 | uint64_t{1} << 62;
}

// Returns the descriptor of a B tile whose rows run along n (kTransposeB): row r is one k and holds
// 64 of the N columns, written by TMA as above. The next 64 columns are `column_step` bytes further
// on. Add 128 for the next 16 along k.
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

// Keeps the compiler from moving reads of d above the wait; called after it. The compiler regards d
// as written when the wgmma was issued. Where it moves reads up, the assembler serialises every
// wgmma (warning C7514).
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_results(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

namespace detail {
template <int N>
struct Wgmma;
template <int N>
struct IntegerWgmma;

// The accumulator operands of the instruction, four at a time: their names and their bindings.
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
#define FUSEWIRE_SUM(x) "+f"(x)
#define FUSEWIRE_INTEGER_SUM(x) "+r"(x)
#define FUSEWIRE_BIND_4(C) C(d[0]), C(d[1]), C(d[2]), C(d[3])
#define FUSEWIRE_BIND_8(C) FUSEWIRE_BIND_4(C), C(d[4]), C(d[5]), C(d[6]), C(d[7])
#define FUSEWIRE_BIND_12(C) FUSEWIRE_BIND_8(C), C(d[8]), C(d[9]), C(d[10]), C(d[11])
#define FUSEWIRE_BIND_16(C) FUSEWIRE_BIND_12(C), C(d[12]), C(d[13]), C(d[14]), C(d[15])
#define FUSEWIRE_BIND_20(C) FUSEWIRE_BIND_16(C), C(d[16]), C(d[17]), C(d[18]), C(d[19])
#define FUSEWIRE_BIND_24(C) FUSEWIRE_BIND_20(C), C(d[20]), C(d[21]), C(d[22]), C(d[23])
#define FUSEWIRE_BIND_28(C) FUSEWIRE_BIND_24(C), C(d[24]), C(d[25]), C(d[26]), C(d[27])
#define FUSEWIRE_BIND_32(C) FUSEWIRE_BIND_28(C), C(d[28]), C(d[29]), C(d[30]), C(d[31])
#define FUSEWIRE_BIND_36(C) FUSEWIRE_BIND_32(C), C(d[32]), C(d[33]), C(d[34]), C(d[35])
#define FUSEWIRE_BIND_40(C) FUSEWIRE_BIND_36(C), C(d[36]), C(d[37]), C(d[38]), C(d[39])
#define FUSEWIRE_BIND_44(C) FUSEWIRE_BIND_40(C), C(d[40]), C(d[41]), C(d[42]), C(d[43])
#define FUSEWIRE_BIND_48(C) FUSEWIRE_BIND_44(C), C(d[44]), C(d[45]), C(d[46]), C(d[47])
#define FUSEWIRE_BIND_52(C) FUSEWIRE_BIND_48(C), C(d[48]), C(d[49]), C(d[50]), C(d[51])
#define FUSEWIRE_BIND_56(C) FUSEWIRE_BIND_52(C), C(d[52]), C(d[53]), C(d[54]), C(d[55])
#define FUSEWIRE_BIND_60(C) FUSEWIRE_BIND_56(C), C(d[56]), C(d[57]), C(d[58]), C(d[59])
#define FUSEWIRE_BIND_64(C) FUSEWIRE_BIND_60(C), C(d[60]), C(d[61]), C(d[62]), C(d[63])
#define FUSEWIRE_BIND_68(C) FUSEWIRE_BIND_64(C), C(d[64]), C(d[65]), C(d[66]), C(d[67])
#define FUSEWIRE_BIND_72(C) FUSEWIRE_BIND_68(C), C(d[68]), C(d[69]), C(d[70]), C(d[71])
#define FUSEWIRE_BIND_76(C) FUSEWIRE_BIND_72(C), C(d[72]), C(d[73]), C(d[74]), C(d[75])
#define FUSEWIRE_BIND_80(C) FUSEWIRE_BIND_76(C), C(d[76]), C(d[77]), C(d[78]), C(d[79])
#define FUSEWIRE_BIND_84(C) FUSEWIRE_BIND_80(C), C(d[80]), C(d[81]), C(d[82]), C(d[83])
#define FUSEWIRE_BIND_88(C) FUSEWIRE_BIND_84(C), C(d[84]), C(d[85]), C(d[86]), C(d[87])
#define FUSEWIRE_BIND_92(C) FUSEWIRE_BIND_88(C), C(d[88]), C(d[89]), C(d[90]), C(d[91])
#define FUSEWIRE_BIND_96(C) FUSEWIRE_BIND_92(C), C(d[92]), C(d[93]), C(d[94]), C(d[95])
#define FUSEWIRE_BIND_100(C) FUSEWIRE_BIND_96(C), C(d[96]), C(d[97]), C(d[98]), C(d[99])
#define FUSEWIRE_BIND_104(C) FUSEWIRE_BIND_100(C), C(d[100]), C(d[101]), C(d[102]), C(d[103])
#define FUSEWIRE_BIND_108(C) FUSEWIRE_BIND_104(C), C(d[104]), C(d[105]), C(d[106]), C(d[107])
#define FUSEWIRE_BIND_112(C) FUSEWIRE_BIND_108(C), C(d[108]), C(d[109]), C(d[110]), C(d[111])
#define FUSEWIRE_BIND_116(C) FUSEWIRE_BIND_112(C), C(d[112]), C(d[113]), C(d[114]), C(d[115])
#define FUSEWIRE_BIND_120(C) FUSEWIRE_BIND_116(C), C(d[116]), C(d[117]), C(d[118]), C(d[119])
#define FUSEWIRE_BIND_124(C) FUSEWIRE_BIND_120(C), C(d[120]), C(d[121]), C(d[122]), C(d[123])
#define FUSEWIRE_BIND_128(C) FUSEWIRE_BIND_124(C), C(d[124]), C(d[125]), C(d[126]), C(d[127])
// clang-format on

#define FUSEWIRE_WGMMA_SHARED(N, R, R1, R2, R3, TYPE)                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2                                 \
               ", 0;\n"                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE          \
               " {" FUSEWIRE_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1, 0, %" #R3 ";\n}" \
               : FUSEWIRE_BIND_##R(FUSEWIRE_SUM)                                        \
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB))
#define FUSEWIRE_WGMMA_FLOAT8(N, R, R1, R2)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2                    \
               ", 0;\n"                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #N                      \
               "k32.f32.e4m3.e4m3"                                         \
               " {" FUSEWIRE_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1;\n}" \
               : FUSEWIRE_BIND_##R(FUSEWIRE_SUM)                           \
               : "l"(a), "l"(b), "r"(accumulate))
#define FUSEWIRE_WGMMA_INT8(N, R, R1, R2)                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2              \
               ", 0;\n"                                              \
               "wgmma.mma_async.sync.aligned.m64n" #N                \
               "k32.s32.s8.s8"                                       \
               " {" FUSEWIRE_NAMES_##R "}, %" #R ", %" #R1 ", p;\n}" \
               : FUSEWIRE_BIND_##R(FUSEWIRE_INTEGER_SUM)             \
               : "l"(a), "l"(b), "r"(accumulate))
#define FUSEWIRE_WGMMA_REGISTERS(N, R, R1, R2, R3, R4, R5, R6, TYPE)                          \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5                                                \
      ", 0;\n"                                                                                \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FUSEWIRE_NAMES_##R \
      "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, %" #R6 ";\n}"           \
      : FUSEWIRE_BIND_##R(FUSEWIRE_SUM)                                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB))
#define FUSEWIRE_WGMMA_INTEGERS(N, R, R1, R2)                                           \
  template <>                                                                           \
  struct IntegerWgmma<N> {                                                              \
    __device__ __forceinline__ static void run(int32_t (&d)[R], uint64_t a, uint64_t b, \
                                               int accumulate) {                        \
      FUSEWIRE_WGMMA_INT8(N, R, R1, R2);                                                \
    }                                                                                   \
  };
// N columns have R = N / 2 accumulators per thread; R1 to R6 are R + 1 to R + 6, the numbers of the
// operands that follow them.
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
// The integer instruction does not exist for every N.
FUSEWIRE_WGMMA_INTEGERS(8, 4, 5, 6)
FUSEWIRE_WGMMA_INTEGERS(16, 8, 9, 10)
FUSEWIRE_WGMMA_INTEGERS(24, 12, 13, 14)
FUSEWIRE_WGMMA_INTEGERS(32, 16, 17, 18)
FUSEWIRE_WGMMA_INTEGERS(48, 24, 25, 26)
FUSEWIRE_WGMMA_INTEGERS(64, 32, 33, 34)
FUSEWIRE_WGMMA_INTEGERS(80, 40, 41, 42)
FUSEWIRE_WGMMA_INTEGERS(96, 48, 49, 50)
FUSEWIRE_WGMMA_INTEGERS(112, 56, 57, 58)
FUSEWIRE_WGMMA_INTEGERS(128, 64, 65, 66)
FUSEWIRE_WGMMA_INTEGERS(144, 72, 73, 74)
FUSEWIRE_WGMMA_INTEGERS(160, 80, 81, 82)
FUSEWIRE_WGMMA_INTEGERS(176, 88, 89, 90)
FUSEWIRE_WGMMA_INTEGERS(192, 96, 97, 98)
FUSEWIRE_WGMMA_INTEGERS(208, 104, 105, 106)
FUSEWIRE_WGMMA_INTEGERS(224, 112, 113, 114)
FUSEWIRE_WGMMA_INTEGERS(240, 120, 121, 122)
FUSEWIRE_WGMMA_INTEGERS(256, 128, 129, 130)
// clang-format on
#undef FUSEWIRE_WGMMA
#undef FUSEWIRE_WGMMA_INTEGERS
}  // namespace detail

// d = A B + (accumulate ? d : 0). A is a descriptor or 4 registers of packed pairs; N is a multiple
// of 8, at most 256. Without kTransposeB, the rows of the tile of B are its N columns, each along
// k.
template <int N, class T, bool kTransposeB = false, class A>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const A& a, uint64_t b, bool accumulate) {
  detail::Wgmma<N>::template run<T, kTransposeB ? 1 : 0>(d, a, b, accumulate ? 1 : 0);
}

// The same product of int8 (T), accumulated in int32. N is a multiple of 16, or 8 or 24.
template <int N, class T>
__device__ __forceinline__ void wgmma(int32_t (&d)[N / 2], uint64_t a, uint64_t b,
                                      bool accumulate) {
  static_assert(std::is_same_v<T, int8_t>);
  detail::IntegerWgmma<N>::run(d, a, b, accumulate ? 1 : 0);
}

}  // namespace fusewire::cuda::sm90
