// Packed attention on Hopper, after FlashAttention-3 (Shah et al. 2024): one warp feeds keys and
// values by TMA through rings of shared memory to warpgroups of 64 queries each, whose products are
// wgmma. A warpgroup's softmax runs under its own products of the tiles before and after, and
// under those of the other warpgroups, which take turns. Weights stay in registers.
//
// The feeding warp runs ahead of the others into the block's next item. Rows of a tile beyond the
// sequence's end belong to the next sequence or are padding that may hold anything, NaN too: such
// keys get the weight 0, the same rows of the values are zeroed in shared memory (0 * NaN is NaN),
// and such queries are not written.
#pragma once

#include <algorithm>

#include "core/kernels.h"
#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/sm90_attention_feed.h"
#include "cuda/sm90_softmax.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// Ties registers to this point of the program: what wgmma works on in the background must not be
// moved or reused across its wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount, int kSize>
__device__ __forceinline__ void pin(uint32_t (&a)[kSize][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// A warpgroup of 64 queries: weights p of the tile before, output o.
template <class T, class Tile>
struct Attend {
  static constexpr int kHeadDim = Tile::kHeadDim, kKeys = Tile::kKeys, kFewKeys = Tile::kFewKeys;

  AttentionMemory<T, Tile>& memory;
  const float scale;
  // The same in a warp, which the compiler cannot know of threadIdx.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  Ring<Tile::kQueryStages> query = {};
  Ring<Tile::kStages> key = {}, value = {};
  uint32_t p[kKeys / 16][4];
  float o[kHeadDim / 2];
  SoftmaxRows rows;

  // s = q . k^T of 2 * kSize keys, left in flight.
  template <int kSize>
  __device__ __forceinline__ void issue_scores(float (&s)[kSize]) {
    barrier_wait(&memory.key_full[key.stage], key.parity);
    const uint64_t q = k_major_descriptor(memory.query[query.stage] + group * 64 * kHeadDim);
    const uint64_t k = k_major_descriptor(memory.key[key.stage]);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      wgmma<2 * kSize, T>(s, q + d / 4 * (64 * 128 / 16) + d % 4 * 2,
                          k + d / 4 * (kKeys * 128 / 16) + d % 4 * 2, d > 0);
    }
    wgmma_commit();
  }
  template <int kSize>
  __device__ __forceinline__ void end_scores(float (&s)[kSize]) {
    pin(s);
    release(&memory.key_empty[key.stage]);
    key.advance();
  }

  // o += p . v, left in flight. Only `count` of the keys are of the sequence.
  template <int kCount>
  __device__ __forceinline__ void issue_values(int count) {
    barrier_wait(&memory.value_full[value.stage], value.parity);
    if (count < kCount) clear_values(count, kCount);
    const uint64_t v = n_major_descriptor(memory.value[value.stage], kKeys * 128);
    pin(o);
    pin<kCount / 16>(p);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < kCount / 16; ++j) wgmma<kHeadDim, T, true>(o, p[j], v + j * 128, true);
    wgmma_commit();
  }
  template <int kCount>
  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>();
    pin(o);
    pin<kCount / 16>(p);
  }
  __device__ __forceinline__ void release_values() {
    release(&memory.value_empty[value.stage]);
    value.advance();
  }

  // Every warpgroup does it for itself, before it reads them.
  __device__ __forceinline__ void clear_values(int begin, int end) {
#pragma unroll
    for (int half = 0; half < kHeadDim / 64; ++half) {
      uint4* vectors = reinterpret_cast<uint4*>(memory.value[value.stage] + half * kKeys * 64);
      for (int i = begin * 8 + threadIdx.x % 128; i < end * 8; i += 128) vectors[i] = {};
    }
    fence_async_shared();
    named_barrier_sync(8 + group, 128);
  }

  // Warpgroups issue their products one after another: a turn ends when the scores are done.
  __device__ __forceinline__ void take_turn() {
    if constexpr (Tile::kWarpgroups > 1) named_barrier_sync(1 + group, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Tile::kWarpgroups > 1) {
      named_barrier_arrive(1 + (group + 1) % Tile::kWarpgroups, 256);
    }
  }

  template <int kSize>
  __device__ __forceinline__ bool weigh(float (&s)[kSize], int keys, float (&correction)[2]) {
    // This branch also keeps the assembler from moving what is above, the next one's turn, below
    // the softmax.
    if (keys < 2 * kSize) mask_keys(s, keys);
    return softmax(s, scale, rows, correction);
  }
  template <int kSize>
  __device__ __forceinline__ void pack_weights(const float (&s)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
  }

  // Scores of a tile of kCount keys; `keys` are left of the sequence.
  template <int kCount>
  __device__ __forceinline__ void first_tile(int keys) {
    float s[kCount / 2], correction[2];
    take_turn();
    issue_scores(s);
    wgmma_wait<0>();
    pass_turn();
    end_scores(s);
    weigh(s, keys, correction);
    pack_weights(s);
  }

  // The same, and the values of the tile before.
  template <int kCount>
  __device__ __forceinline__ void next_tile(int keys) {
    float s[kCount / 2], correction[2];
    take_turn();
    issue_scores(s);
    issue_values<kKeys>(kKeys);
    wgmma_wait<1>();
    pass_turn();
    end_scores(s);
    // A wait in each branch: a single one the assembler moves up, ahead of the softmax.
    if (weigh(s, keys, correction)) {
      end_values<kKeys>();
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= correction[i / 2 % 2];
    } else {
      end_values<kKeys>();
    }
    release_values();
    pack_weights(s);
  }

  // Values of the last tile.
  template <int kCount>
  __device__ __forceinline__ void finish(int keys) {
    release(&memory.query_empty[query.stage]);
    issue_values<kCount>(keys);
    end_values<kCount>();
    release_values();
  }

  __device__ __forceinline__ void run(int length) {
    rows = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;
    // A last tile of few keys has code of its own.
    const bool single = length <= kFewKeys;
    int keys = length;
    if (!single) {
      first_tile<kKeys>(keys);
      for (keys -= kKeys; keys > kFewKeys; keys -= kKeys) next_tile<kKeys>(keys);
    }
    if (keys > 0) {
      single ? first_tile<kFewKeys>(keys) : next_tile<kFewKeys>(keys);
      finish<kFewKeys>(keys);
    } else {
      finish<kKeys>(keys + kKeys);
    }
  }

  // Keeps step with the others where this warpgroup has no queries.
  __device__ __forceinline__ void idle(int length) {
    release(&memory.query_empty[query.stage]);
    for (int first = 0; first < length; first += kKeys) {
      take_turn();
      pass_turn();
      barrier_wait(&memory.key_full[key.stage], key.parity);
      release(&memory.key_empty[key.stage]);
      key.advance();
      barrier_wait(&memory.value_full[value.stage], value.parity);
      release_values();
    }
  }

  // Rows of o by their totals to `out`, 16 bytes a thread, as far as there are queries.
  __device__ __forceinline__ void write(T* out, int64_t stride, int queries) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = rows.total[h];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const float inverse = 1.0f / total;
      const int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
      T* to = out + row * stride + lane % 4 * 8;
#pragma unroll
      for (int b = 0; b < kHeadDim / 32; ++b) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int from = 4 * (4 * b + i) + 2 * h;
          words[i] = pack<T>(o[from] * inverse, o[from + 1] * inverse);
        }
        transpose_quad(words);
        if (row < queries) {
          *reinterpret_cast<uint4*>(to + b * 32) = uint4{words[0], words[1], words[2], words[3]};
        }
      }
    }
  }
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_kernel(const __grid_constant__ CUtensorMap queries,
                     const __grid_constant__ CUtensorMap keys, T* out, int64_t out_stride,
                     const int32_t* offsets, int sequences, bool sorted, int heads, int items,
                     float scale) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<AttentionMemory<T, Tile>*>(shared);
  let_next_start();
  if (threadIdx.x == 0) {
    map_prefetch(&queries);
    map_prefetch(&keys);
    memory.init();
  }
  if (sorted) memory.order.sort(offsets, sequences);  // as in query_tile.h before the wait
  __syncthreads();
  wait_for_inputs();

  if (threadIdx.x >= 128 * Tile::kWarpgroups) {
    registers_shrink_to<Tile::kFeedRegisters>();
    if (threadIdx.x < 128 * Tile::kWarpgroups + 32) {
      SequenceOrder* order = sorted ? &memory.order : nullptr;
      feed<T, Tile>(memory, &queries, &keys, {offsets, order, sequences, heads, items}, heads);
    }
  } else {
    registers_grow_to<Tile::kRegisters>();
    Attend<T, Tile> attend{memory, scale};
    if (attend.group == Tile::kWarpgroups - 1) attend.pass_turn();
    for (;; attend.query.advance()) {
      barrier_wait(&memory.query_full[attend.query.stage], attend.query.parity);
      const AttentionItem item = memory.item[attend.query.stage];
      if (item.tile.length == 0) break;
      const int first = item.tile.first_query + attend.group * 64;
      if (first < item.tile.length) {
        attend.run(item.tile.length);
        attend.write(out + (item.tile.token + first) * out_stride + item.head * Tile::kHeadDim,
                     out_stride, item.tile.length - first);
      } else {
        attend.idle(item.tile.length);
      }
    }
  }
}

template <class T, class Tile>
void run_attention(const AttentionArguments& a, int multiprocessors, const Stream& stream) {
  const SequenceBatch& batch = *a.batch;
  const auto map = [&](int rows) {
    return matrix_map(kDTypeOf<T>, a.qkv, batch.tokens(), 3 * a.heads * a.head_dim, a.qkv_stride,
                      rows, 64);
  };
  const int sequences = static_cast<int>(batch.sequences());
  const bool equal = batch.begin() && batch.tokens() == sequences * batch.max_seqlen();
  const bool sorted = !equal && sequences > 1 && sequences <= SequenceOrder::kMost;
  const int items = static_cast<int>(batch.query_tiles(Tile::kRows) * a.heads);
  const auto kernel = attention_kernel<T, Tile>;
  constexpr size_t kBytes = sizeof(AttentionMemory<T, Tile>);
  allow_shared_memory(kernel, kBytes);
  launch(kernel, dim3(std::min(items, multiprocessors)), dim3(Tile::kThreads), kBytes, stream,
         map(64), map(Tile::kKeys), static_cast<T*>(a.out), a.out_stride, batch.device_offsets(),
         sequences, sorted, static_cast<int>(a.heads), items, a.scale * 1.44269504f);
}

}  // namespace fusewire::cuda::sm90
