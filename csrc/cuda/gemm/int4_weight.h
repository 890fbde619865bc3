// The memory layout of a matrix of 4-bit elements, and their dequantisation in registers.
//
// A tile is 16 channels (the rows of mma). A unit is 64 neighbouring inputs of a tile (4 steps of
// mma): 512 bytes, of which each lane reads 16, a word per step. With g = lane / 4 and t = lane %
// 4, the word of step s has channels g and g + 8 at the inputs 16 s + 2 t + {0, 1, 8, 9}. This is
// the fragment of mma, and of wgmma, whose four warps have a tile each. The units of a tile are
// contiguous. Elements beyond the matrix are zeros.
//
// Each group of a channel's inputs has a word: the scale in fp32, whose last 4 bits are replaced by
// the zero point. The scale keeps 20 significant bits, enough for all of a 16-bit scale. Words are
// [tile][group][g]{g, g + 8}.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/element.h"

namespace fusewire::cuda::nibbles {

constexpr int kTileChannels = 16, kUnitInputs = 64, kSteps = 4;
constexpr int kUnitBytes = kTileChannels * kUnitInputs / 2;
constexpr int kFineGroup = 32;  // the only group size of which a unit has two
constexpr uint32_t kZeroBits = 15;
constexpr uint32_t kMiddle = 8;  // the zero point of symmetric weights

constexpr int64_t tiles_of(int64_t channels) {
  return (channels + kTileChannels - 1) / kTileChannels;
}

constexpr int64_t units_of(int64_t inputs) {
  return (inputs + kUnitInputs - 1) / kUnitInputs;
}

// Returns the number of groups that have words. `group`: inputs per group, a power of two from 32
// on; 0: all inputs.
constexpr int64_t groups_of(int64_t inputs, int64_t group) {
  if (group == 0) return 1;
  return group == kFineGroup ? 2 * units_of(inputs) : (inputs + group - 1) / group;
}

// Returns the shift that turns a unit's index into its group's. With fine groups it is not used: a
// unit's first group is twice its index.
inline int group_shift(int64_t group) {
  int shift = 0;
  if (group == 0) return 31;
  while (int64_t{kUnitInputs} << shift < group) ++shift;
  return shift;
}

__device__ __forceinline__ float scale_of(uint32_t word) {
  return __uint_as_float(word & ~kZeroBits);
}

// The zero points of channels g and g + 8, in the form that `fragment` needs.
template <class T>
struct ZeroPoints;

// Dequantises a word to mma's registers of 16 channels x 16 inputs: its elements minus their zero
// points, exactly. The 4 bits of an element become the lowest mantissa bits of 1024, or of 128 in
// bf16.
template <class T>
__device__ __forceinline__ void fragment(uint32_t word, const ZeroPoints<T>& zeros,
                                         uint32_t (&a)[4]);

constexpr uint32_t kLow = 0x000f000f, kNext = 0x00f000f0;

// Returns word & kMask | kBits in one instruction; the compiler would use two.
template <uint32_t kMask, uint32_t kBits>
__device__ __forceinline__ uint32_t masked(uint32_t word) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "n"(kMask), "n"(kBits));
  return bits;
}

template <>
struct ZeroPoints<__half> {
  __half2 first, second;  // 1024 + zero; -64 - zero

  __device__ __forceinline__ ZeroPoints(uint32_t word, uint32_t second_word) {
    const uint32_t one = 0x64006400u | (word & kZeroBits) * 0x00010001u;
    const uint32_t other = 0xd400d400u | (second_word & kZeroBits) * 0x00100010u;
    first = reinterpret_cast<const __half2&>(one);
    second = reinterpret_cast<const __half2&>(other);
  }
};

template <>
__device__ __forceinline__ void fragment<__half>(uint32_t word, const ZeroPoints<__half>& zeros,
                                                 uint32_t (&a)[4]) {
  const uint32_t sixteenth = 0x2c002c00u;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t low = masked<kLow, 0x64006400u>(word), next = masked<kNext, 0x64006400u>(word);
    const __half2 first = __hsub2(reinterpret_cast<const __half2&>(low), zeros.first);
    const __half2 second = __hfma2(reinterpret_cast<const __half2&>(next),
                                   reinterpret_cast<const __half2&>(sixteenth), zeros.second);
    a[i] = reinterpret_cast<const uint32_t&>(first);
    a[i + 1] = reinterpret_cast<const uint32_t&>(second);
    word >>= 8;
  }
}

template <>
struct ZeroPoints<__nv_bfloat16> {
  __nv_bfloat162 first, second;  // 128 + zero

  __device__ __forceinline__ ZeroPoints(uint32_t word, uint32_t second_word) {
    const uint32_t one = 0x43004300u | (word & kZeroBits) * 0x00010001u;
    const uint32_t other = 0x43004300u | (second_word & kZeroBits) * 0x00010001u;
    first = reinterpret_cast<const __nv_bfloat162&>(one);
    second = reinterpret_cast<const __nv_bfloat162&>(other);
  }
};

template <>
__device__ __forceinline__ void fragment<__nv_bfloat16>(uint32_t word,
                                                        const ZeroPoints<__nv_bfloat16>& zeros,
                                                        uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = masked<kLow, 0x43004300u>(word >> 4 * i);
    const __nv_bfloat162 number =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(bits), i % 2 ? zeros.second : zeros.first);
    a[i] = reinterpret_cast<const uint32_t&>(number);
  }
}

// Dequantises including scales, for products of many rows. A scale has more bits than T and is the
// sum of two Ts. Elements are rounded once: the product with the smaller part is so small that its
// own rounding does not matter (and scales that came in 16 bits give exact ones).
template <class T>
struct GroupNumbers {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  ZeroPoints<T> zeros;
  uint32_t scales[2], rests[2];  // of channels g and g + 8, each twice

  __device__ __forceinline__ explicit GroupNumbers(uint2 words) : zeros(words.x, words.y) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = scale_of(i ? words.y : words.x);
      scales[i] = pack<T>(scale, scale);
      const float rest = scale - unpack<T>(scales[i]).x;
      rests[i] = pack<T>(rest, rest);
    }
  }

  __device__ __forceinline__ void fragment(uint32_t word, uint32_t (&a)[4]) const {
    nibbles::fragment<T>(word, zeros, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Pair number = reinterpret_cast<const Pair&>(a[i]);
      const Pair rest = __hmul2(number, reinterpret_cast<const Pair&>(rests[i % 2]));
      const Pair scaled = __hfma2(number, reinterpret_cast<const Pair&>(scales[i % 2]), rest);
      a[i] = reinterpret_cast<const uint32_t&>(scaled);
    }
  }
};

}  // namespace fusewire::cuda::nibbles
