// A warpgroup of attention on Hopper. It computes scores, softmax and the product with the values
// for 64 queries, item after item. Its softmax overlaps with its own products of the previous and
// next tiles, and with those of the other warpgroups of the team, which issue products in turns.
// Weights stay in registers.
#pragma once

#include "cuda/attention/sm90_attention_feed.h"
#include "cuda/attention/sm90_softmax.h"
#include "cuda/mma.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// Pins registers at this point of the program: the compiler must not move or reuse registers that
// an asynchronous wgmma accesses across the wait for it.
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

// Stores four 8 x 8 matrices of 16-bit elements to shared memory; lane 8 m + r passes the address
// of row r of matrix m.
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

// Stores the warp's 16 rows times `scale` (that of each of the lane's two rows) to device memory,
// as whole lines, by way of the shared memory at `lines`, where the warp's own rows were. Only the
// first `rows` rows exist.
template <int kDim, class T>
__device__ __forceinline__ void write_rows(const float (&sum)[kDim / 2], const float (&scale)[2],
                                           uint32_t lines, T* to, int64_t stride, int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j) {  // 16 columns
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = sum + 8 * j + 2 * i;
      words[i] = pack<T>(from[0] * scale[i % 2], from[1] * scale[i % 2]);
    }
    const int chunk = (j % 4 * 2 + lane / 16) ^ lane % 8;  // as TMA swizzles
    store_matrices(lines + j / 4 * (64 * 128) + lane % 16 * 128 + chunk * 16, words);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const int row = lane / 8 + i, chunk = lane % 8;
#pragma unroll
    for (int half = 0; half < kDim / 64; ++half) {
      const uint4 line =
          load_shared_16(lines + half * (64 * 128) + row * 128 + (chunk ^ row % 8) * 16);
      if (row < rows) *reinterpret_cast<uint4*>(to + row * stride + half * 64 + chunk * 8) = line;
    }
  }
}

// The state of a warpgroup of 64 queries: p are the weights of the previous tile, o is the output.
template <class T, class Tile>
struct Attend {
  static constexpr int kHeadDim = Tile::kHeadDim, kKeys = Tile::kKeys, kFewKeys = Tile::kFewKeys;

  AttentionMemory<T, Tile>& memory;
  const float scale;
  const int team, group;  // the team in the block, the warpgroup in the team
  T* const out;
  const int64_t out_stride;
  Ring<Tile::kQueryStages> query = {};
  Ring<Tile::kStages> key = {}, value = {};
  uint32_t p[kKeys / 16][4];
  float o[kHeadDim / 2];
  SoftmaxRows rows;

  __device__ __forceinline__ T* queries() const {
    return memory.query[query.stage] + group * 64 * kHeadDim;
  }

  // Issues s = q . k^T for 2 * kSize keys, without waiting for it.
  template <int kSize>
  __device__ __forceinline__ void issue_scores(float (&s)[kSize]) {
    barrier_wait(&memory.key_full[key.stage], key.parity);
    const uint64_t k = k_major_descriptor(memory.key[key.stage]);
    const uint64_t q = k_major_descriptor(queries());
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

  // Issues o += p . v, without waiting for it. Only the first `count` keys belong to the sequence.
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

  // Sets rows [begin, end) of the values to zero. Every warpgroup does this itself before it reads
  // them.
  __device__ __forceinline__ void clear_values(int begin, int end) {
#pragma unroll
    for (int half = 0; half < kHeadDim / 64; ++half) {
      uint4* vectors = reinterpret_cast<uint4*>(memory.value[value.stage] + half * kKeys * 64);
      for (int i = begin * 8 + threadIdx.x % 128; i < end * 8; i += 128) vectors[i] = {};
    }
    fence_async_shared();
    named_barrier_sync(8 + team * Tile::kWarpgroups + group, 128);
  }

  // Warpgroups take turns to issue their products. A turn ends when the scores are complete.
  __device__ __forceinline__ int turn(int of) const { return 1 + team * Tile::kWarpgroups + of; }
  __device__ __forceinline__ void take_turn() {
    if constexpr (Tile::kWarpgroups > 1) named_barrier_sync(turn(group), 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Tile::kWarpgroups > 1) {
      named_barrier_arrive(turn((group + 1) % Tile::kWarpgroups), 256);
    }
  }

  template <int kSize>
  __device__ __forceinline__ bool weigh(float (&s)[kSize], int keys, float (&correction)[2]) {
    // This branch also keeps the assembler from moving the code above it, which passes the turn on,
    // below the softmax.
    if (keys < 2 * kSize) mask_keys(s, keys);
    return softmax(s, scale, rows, correction);
  }
  template <int kSize>
  __device__ __forceinline__ void pack_weights(const float (&s)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
  }

  // Computes the weights of the first tile, of kCount keys; `keys` keys of the sequence are left.
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

  // Computes the weights of the next tile and, meanwhile, the product of the previous weights and
  // values.
  template <int kCount>
  __device__ __forceinline__ void next_tile(int keys) {
    float s[kCount / 2], correction[2];
    take_turn();
    issue_scores(s);
    issue_values<kKeys>(kKeys);
    wgmma_wait<1>();
    pass_turn();
    end_scores(s);
    // Each branch has its own wait: the assembler would move a common one up, before the softmax.
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

  // Adds the product of the weights and values of the last tile.
  template <int kCount>
  __device__ __forceinline__ void finish(int keys) {
    issue_values<kCount>(keys);
    end_values<kCount>();
    release_values();
  }

  __device__ __forceinline__ void attend(int length) {
    rows = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;
    // The last tile has separate code if it has few keys.
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

  // Takes part in the turns and barriers of an item in which this warpgroup has no queries.
  __device__ __forceinline__ void idle(int length) {
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

  // Divides the rows of o by the totals of their weights and stores those that are queries of the
  // sequence: as whole lines, by way of the shared memory that held the queries, where each warp
  // has its own rows.
  __device__ __forceinline__ void write(const AttentionItem& item) {
    const int warp_row = threadIdx.x % 128 / 32 * 16;
    const int first = item.tile.first_query + group * 64 + warp_row;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = __fdividef(1.0f, reduce_lanes<4>(rows.total[h], Sum{}));
    }
    write_rows<kHeadDim>(o, inverse, shared_address(queries()) + warp_row * 128,
                         out + (item.tile.token + first) * out_stride + item.head * kHeadDim,
                         out_stride, item.tile.length - first);
    fence_async_shared();
  }

  // Processes all items of the team.
  __device__ __forceinline__ void run() {
    if (group == Tile::kWarpgroups - 1) pass_turn();
    for (;; query.advance()) {
      barrier_wait(&memory.query_full[query.stage][group], query.parity);
      const AttentionItem item = read_item(memory.item[query.stage]);
      const int length = item.tile.length;
      if (length == 0) return;
      if (item.tile.first_query + group * 64 < length) {
        attend(length);
        write(item);
      } else {
        idle(length);
      }
      release(&memory.query_empty[query.stage]);
    }
  }
};

}  // namespace fusewire::cuda::sm90
