#include <algorithm>
#include <memory>

#include "core/allocator.h"
#include "cuda/element.h"
#include "cuda/gemm/int4_pack.h"
#include "cuda/gemm/int4_weight.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

using namespace nibbles;

constexpr int kThreads = 256;

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

// Each thread packs one word. `bytes` are those of `rows` channels from the tile's first on.
__global__ void __launch_bounds__(kThreads)
    pack_codes(uint32_t* words, const uint8_t* bytes, int64_t rows, int64_t k, int64_t count) {
  wait_for_inputs();
  const int64_t word = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= count) return;
  const int step = static_cast<int>(word % kSteps), lane = static_cast<int>(word / kSteps % 32);
  const int64_t unit = word / kSteps / 32, units = (k + kUnitInputs - 1) / kUnitInputs;
  const int64_t channel = unit / units * kTileChannels + lane / 4;
  const int64_t input = unit % units * kUnitInputs + 16 * step + 2 * (lane % 4);
  const auto four = [&](int64_t row) -> uint32_t {  // the inputs of a step are all present, or none
    if (row >= rows || input >= k) return 0;
    const uint8_t* at = bytes + (row * k + input) / 2;
    return at[0] | static_cast<uint32_t>(at[4]) << 8;
  };
  const uint32_t both[2] = {four(channel), four(channel + 8)};
  uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // inputs 0, 2 of both channels, then 1, 3
    const int from = i % 4 / 2 * 2 + i / 4;
    packed |= (both[i % 2] >> 4 * from & 15u) << 4 * i;
  }
  words[word] = packed;
}

__global__ void __launch_bounds__(kThreads)
    pack_groups(uint32_t* words, const float* scales, const uint8_t* zeros, int64_t n,
                int64_t given, int64_t stored, int64_t count) {
  wait_for_inputs();
  const int64_t word = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= count) return;
  const int place = static_cast<int>(word % kTileChannels);
  const int64_t group = word / kTileChannels % stored;
  const int64_t channel = word / kTileChannels / stored * kTileChannels + place / 2 + place % 2 * 8;
  uint32_t packed = 0;
  if (channel < n && group < given) {
    const int64_t at = channel * given + group;
    packed = (__float_as_uint(scales[at]) + kZeroBits / 2 + 1) & ~kZeroBits;
    packed |= zeros ? zeros[at] & kZeroBits : kMiddle;
  }
  words[word] = packed;
}

// Transposes pairs over four lanes: pairs[j] of lane t becomes pairs[t] of lane j.
__device__ __forceinline__ void transpose_of_four(uint32_t (&pairs)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t &first = pairs[step == 1 ? 2 * i : i],
               &second = pairs[step == 1 ? 2 * i + 1 : i + 2];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? first : second, step);
      (upper ? first : second) = got;
    }
  }
}

// Dequantises two steps: 32 neighbouring inputs of two channels, of which a lane writes 8 each.
template <class T>
__device__ __forceinline__ void dequantize_half(T* to, uint32_t first, uint32_t second, uint2 word,
                                                int64_t rows, int64_t stride) {
  const GroupNumbers<T> group(word);
  uint32_t a[2][4];
  group.fragment(first, a[0]);
  group.fragment(second, a[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[4] = {a[0][i], a[0][2 + i], a[1][i], a[1][2 + i]};
    transpose_of_four(pairs);
    if (8 * i >= rows) continue;
    *reinterpret_cast<uint4*>(to + 8 * i * stride) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

constexpr int kUnitsAtOnce = 4;  // per warp

// Grid: x = units, kUnitsAtOnce per warp, y = tiles. A lane has 16 bytes of each unit.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(T* to, const uint4* codes, const uint2* words, int64_t rows, int64_t k,
                      int units, int groups, int shift, bool fine) {
  wait_for_inputs();
  const int lane = threadIdx.x % 32, g = lane / 4;
  const int first = (blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kUnitsAtOnce;
  const int64_t tile = blockIdx.y, channel = tile * kTileChannels + g;
  codes += tile * units * 32 + lane;
  words += tile * groups * 8 + g;
  to += channel * k;
  uint4 packed[kUnitsAtOnce];
  uint2 word[kUnitsAtOnce][2];
#pragma unroll
  for (int i = 0; i < kUnitsAtOnce; ++i) {
    const int unit = min(first + i, units - 1);
    packed[i] = codes[unit * 32];
    const int group = fine ? 2 * unit : unit >> shift;
    word[i][0] = words[group * 8];
    word[i][1] = words[(group + fine) * 8];
  }
#pragma unroll
  for (int i = 0; i < kUnitsAtOnce; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t input =
          static_cast<int64_t>(first + i) * kUnitInputs + 32 * half + 8 * (lane % 4);
      if (input >= k) return;  // the other lanes of the warp return too
      dequantize_half<T>(to + input, half ? packed[i].z : packed[i].x,
                         half ? packed[i].w : packed[i].y, word[i][half], rows - channel, k);
    }
  }
}

}  // namespace

size_t packed_int4_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(tiles_of(n) * units_of(k) * kUnitBytes);
}

size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group) {
  return static_cast<size_t>(tiles_of(n) * kTileChannels * groups_of(k, group)) * sizeof(uint32_t);
}

void pack_int4(const PackArguments& a, const Stream& stream) {
  constexpr int64_t kPieceBytes = 64 << 20;
  CachingAllocator& allocator = default_allocator(stream.device);
  const auto copied = [&](const void* from, size_t bytes) {
    std::shared_ptr<void> to = allocator.allocate_uncached(bytes, "packing", stream);
    check(cudaMemcpyAsync(to.get(), from, bytes, cudaMemcpyDefault, handle(stream)), "pack");
    return to;
  };
  const int64_t row_bytes = a.k / 2, tile_bytes = row_bytes * kTileChannels;
  const int64_t rows = std::max<int64_t>(kPieceBytes / tile_bytes, 1) * kTileChannels;
  for (int64_t first = 0; first < a.n; first += rows) {
    const int64_t some = std::min(rows, a.n - first);
    const auto bytes = copied(static_cast<const uint8_t*>(a.weight) + first * row_bytes,
                              static_cast<size_t>(some * row_bytes));
    const auto packed = static_cast<int64_t>(packed_int4_bytes(some, a.k)) / 4;
    auto* words = static_cast<uint32_t*>(a.packed) + packed_int4_bytes(first, a.k) / 4;
    launch(pack_codes, blocks_for(packed), kThreads, 0, stream, words,
           static_cast<const uint8_t*>(bytes.get()), some, a.k, packed);
  }
  const int64_t given = a.group ? (a.k + a.group - 1) / a.group : 1;
  const int64_t stored = groups_of(a.k, a.group);
  const auto count = static_cast<size_t>(a.n * given);
  const auto scales = copied(a.given, count * sizeof(float));
  const auto zeros = a.zeros ? copied(a.zeros, count) : nullptr;
  const auto words = static_cast<int64_t>(int4_scales_bytes(a.n, a.k, a.group)) / 4;
  launch(pack_groups, blocks_for(words), kThreads, 0, stream, reinterpret_cast<uint32_t*>(a.scales),
         static_cast<const float*>(scales.get()), static_cast<const uint8_t*>(zeros.get()), a.n,
         given, stored, words);
  // Products fetch weights before they wait for earlier kernels (launch.h), so packing must have
  // ended.
  check(cudaStreamSynchronize(handle(stream)), "pack");
}

template <class T>
void dequantize_int4(void* to, const GemmOperand& weight, int64_t k, int64_t first, int64_t count,
                     const Stream& stream) {
  const int64_t units = units_of(k), groups = groups_of(k, weight.group);
  const int64_t tile = first / kTileChannels;
  const dim3 grid(blocks_for((units + kUnitsAtOnce - 1) / kUnitsAtOnce * 32),
                  static_cast<unsigned>(tiles_of(count)));
  launch(dequantize_kernel<T>, grid, kThreads, 0, stream, static_cast<T*>(to),
         static_cast<const uint4*>(weight.data) + tile * units * 32,
         static_cast<const uint2*>(weight.scales) + tile * groups * 8, count, k,
         static_cast<int>(units), static_cast<int>(groups), group_shift(weight.group),
         weight.group == kFineGroup);
}

#define INSTANTIATE(T)                                                                   \
  template void dequantize_int4<T>(void*, const GemmOperand&, int64_t, int64_t, int64_t, \
                                   const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
