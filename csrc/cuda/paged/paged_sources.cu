// Attention of one new token per sequence to the whole of a context, without a mask: beams to their
// sources, in translation (hundreds of rows and a few dozen keys) and summarisation (hundreds of
// keys).
//
// A warp processes one head of up to kMostRows rows and all their keys, 32 at a time. Keys and
// values stay in registers from the fetch to the tensor cores: each lane fetches the elements that
// its fragments of the products need. Columns may be summed in any order as long as queries and
// keys agree on it, and so may keys. Blocks share nothing and do not synchronise. If there are many
// keys, the warps of a block divide them, and the block adds up their results.
//
// Of kMostRows neighbouring sequences, the warp of the first one also serves those with the same
// block table, and reads the keys once. The sums of each row are the same as if it were alone. If
// there are more sequences than warps that run at once, a warp processes several in turn. Usually
// one of them leads the others; separate warps would find nothing to do, but occupy slots that
// warps with work need.
//
// Keys and values of earlier steps are fetched before wait_for_inputs(), as in sm90_paged.h.
#include <algorithm>

#include "cuda/activation.h"
#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/mma.h"
#include "cuda/paged/paged_attention.h"
#include "cuda/paged/paged_sources.h"
#include "cuda/paged/sequences_sharing.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

constexpr int kDim = 64, kWarps = 4;
constexpr int kVector = 8;     // elements per load
constexpr int kChunk = 32;     // keys in registers
constexpr int kMostRows = 16;  // neighbouring sequences that may share keys
constexpr int kMostPages = 8, kMostKeys = 128;
// If the warps of a block divide the keys: the most keys, as many as the block table of a captured
// step has room for, and the fewest sequences times heads. With fewer of these, the keys of each
// have to be divided among blocks.
constexpr int kMostKeysInParts = 2048, kFewestInParts = 256;
constexpr int kBlocksPerSm = 3;
constexpr int kMostInTurn = 4;  // the most sequences that a warp processes in turn

struct Words {
  uint32_t at[4];
};

__device__ __forceinline__ Words words_of(const uint4& vector) {
  return {{vector.x, vector.y, vector.z, vector.w}};
}

constexpr int kHalves = 2;  // rows of a lane in a fragment: g and g + 8

// A lane's results for some rows over some keys: the sums of values weighted relative to the
// highest score, that score, and the lane's own part of the sum of weights.
struct Found {
  float sum[kDim / 8][2 * kHalves], top[kHalves], total[kHalves];
};

// The results of all warps of a block but the first, element by element, each contiguous over the
// lanes.
template <int kParts>
struct FoundParts {
  static constexpr int kNumbers = sizeof(Found) / sizeof(float);
  float at[kParts - 1][kNumbers][kWarp];

  __device__ __forceinline__ void put(int part, const Found& found) {
    const float* const from = reinterpret_cast<const float*>(&found);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) at[part - 1][i][threadIdx.x % kWarp] = from[i];
  }
  __device__ __forceinline__ Found get(int part) const {
    Found found;
    float* const to = reinterpret_cast<float*>(&found);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) to[i] = at[part - 1][i][threadIdx.x % kWarp];
    return found;
  }
};
template <>
struct FoundParts<1> {};

// Adds the results over other keys.
__device__ __forceinline__ void add(Found& to, const Found& more) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const float top = fmaxf(to.top[h], more.top[h]);
    const float base = top == -INFINITY ? 0.0f : top;  // no key in either
    const float own = fast_exp2(to.top[h] - base), other = fast_exp2(more.top[h] - base);
    to.top[h] = top;
    to.total[h] = fmaf(to.total[h], own, more.total[h] * other);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        to.sum[n][i] = fmaf(to.sum[n][i], own, more.sum[n][i] * other);
      }
    }
  }
}

// Computes one head of `rows` sequences that share their pages, `sequence` and those after it. If
// kParts > 1, each of the kParts warps of a block takes every kParts-th chunk of keys.
template <class T, int kParts>
__device__ __forceinline__ void attend_to_source(const PagedShape& shape, T* out, const T* q,
                                                 const T* keys, const T* values, int sequence,
                                                 int head, int rows, FoundParts<kParts>& parts) {
  const int part = kParts == 1 ? 0 : threadIdx.x / kWarp, begin = part * kChunk;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;  // as in mma.h
  const int row = shape.offsets[sequence];
  const int end = shape.contexts[sequence], newest = end - 1;
  const int32_t* const table = shape.table + int64_t{sequence} * shape.table_width;
  const auto place_of = [&](int key) {
    const int64_t page = table[key >> shape.page_shift];
    const int in_page = key & ((1 << shape.page_shift) - 1);
    return (((page * shape.heads + head) << shape.page_shift) + in_page) * kDim;
  };
  // Of tile j of 8 keys, a lane holds key g: 8 columns from 8 t on and 8 from 32 + 8 t on. Of 16
  // values, it holds those of keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9: 8 columns from 8 g on.
  uint4 k[kChunk / 8][2], v[kChunk / 16][4];
  const auto key_of = [&](int first, int j) { return first + 8 * j + g; };
  const auto value_of = [&](int first, int b, int i) {
    return first + 16 * b + 2 * t + i % 2 + i / 2 * 8;
  };
  // Instead of keys beyond `last`, which are not seen, it loads `last`, so that no load depends on
  // a branch.
  const auto fetch = [&](int first, int last) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const T* const from = keys + kVector * t + place_of(min(key_of(first, j), last));
#pragma unroll
      for (int c = 0; c < 2; ++c) k[j][c] = *reinterpret_cast<const uint4*>(from + 32 * c);
    }
#pragma unroll
    for (int b = 0; b < kChunk / 16; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* const from = values + kVector * g + place_of(min(value_of(first, b, i), last));
        v[b][i] = *reinterpret_cast<const uint4*>(from);
      }
    }
  };
  const auto newest_place = place_of(max(newest, 0));
  fetch(begin, max(newest - 1, 0));
  if (lane < 2 && end > 0) prefetch((lane == 0 ? keys : values) + newest_place);
  wait_for_inputs();
  if (begin <= newest && newest < begin + kChunk) {
    const T* const key = keys + newest_place + kVector * t;
    const uint4 low = *reinterpret_cast<const uint4*>(key);
    const uint4 high = *reinterpret_cast<const uint4*>(key + 32);
    const uint4 value = *reinterpret_cast<const uint4*>(values + newest_place + kVector * g);
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      if (key_of(begin, j) < newest) continue;
      k[j][0] = low;
      k[j][1] = high;
    }
#pragma unroll
    for (int b = 0; b < kChunk / 16; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (value_of(begin, b, i) >= newest) v[b][i] = value;
      }
    }
  }

  Words query[kHalves][2];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      query[h][c] = {};
      const T* const from =
          q + (row + g + 8 * h) * shape.q_stride + head * kDim + 32 * c + kVector * t;
      if (g + 8 * h < rows) query[h][c] = words_of(*reinterpret_cast<const uint4*>(from));
    }
  }
  const float scale = shape.scale * kLog2E;
  Found found = {};
  auto& [sum, top, total] = found;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) top[h] = -INFINITY;
#pragma unroll 1
  for (int first = begin; first < end; first += kParts * kChunk) {
    if (first > begin) fetch(first, newest);
    float score[kChunk / 8][4] = {};
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Words key = words_of(k[j][c]);
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const uint32_t a[4] = {query[0][c].at[w], query[1][c].at[w], query[0][c].at[w + 1],
                                 query[1][c].at[w + 1]};
          multiply_add<T>(score[j], a, key.at[w], key.at[w + 1]);
        }
      }
    }
    float highest[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) highest[h] = top[h];
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool seen = first + 8 * j + 2 * t + e < end;
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          float& x = score[j][2 * h + e];
          x = seen ? x * scale : -INFINITY;
          highest[h] = fmaxf(highest[h], x);
        }
      }
    }
    float before[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      highest[h] = reduce_lanes<4>(highest[h], Max{});
      before[h] = fast_exp2(top[h] - highest[h]);
      top[h] = highest[h];
      total[h] *= before[h];
#pragma unroll
      for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = score[j][2 * h + e];
          x = fast_exp2(x - highest[h]);
          total[h] += x;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) sum[n][i] *= before[i / 2];
    }
#pragma unroll
    for (int b = 0; b < kChunk / 16; ++b) {
      const auto weights = [&](int j, int h) {
        return pack<T>(score[j][2 * h], score[j][2 * h + 1]);
      };
      const uint32_t a[4] = {weights(2 * b, 0), weights(2 * b, 1), weights(2 * b + 1, 0),
                             weights(2 * b + 1, 1)};
      Words value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = words_of(v[b][i]);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int selected = n % 2 ? 0x7632 : 0x5410;  // two keys of one dimension
        const auto pair = [&](int i) {
          return __byte_perm(value[i].at[n / 2], value[i + 1].at[n / 2], selected);
        };
        multiply_add<T>(sum[n], a, pair(0), pair(2));
      }
    }
  }

  if constexpr (kParts > 1) {
    if (part > 0) parts.put(part, found);
    __syncthreads();
    if (part == 0) {
#pragma unroll
      for (int other = 1; other < kParts; ++other) add(found, parts.get(other));
    }
    __syncthreads();  // before `parts` is written for the next sequence
    if (part > 0) return;
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const float all = reduce_lanes<4>(total[h], Sum{});
    const float factor = all > 0.0f ? __fdividef(1.0f, all) : 0.0f;
    if (g + 8 * h >= rows) continue;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = pack<T>(sum[2 * w][2 * h + c] * factor, sum[2 * w + 1][2 * h + c] * factor);
      }
      T* const to = out + (row + g + 8 * h) * shape.out_stride + head * kDim + 16 * t + kVector * c;
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
    }
  }
}

// A warp, or a block if kParts > 1, processes one head of `in_turn` sequences.
template <class T, int kParts>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerSm)
    paged_sources_kernel(const __grid_constant__ PagedShape shape, T* out, const T* q,
                         const T* keys, const T* values, const int in_turn) {
  __shared__ FoundParts<kParts> parts;
  let_next_start();
  const int of_block = kWarps / kParts, warp = threadIdx.x / kWarp;
  const int number = static_cast<int>(blockIdx.x) * of_block + warp / kParts;
  const int first = number / shape.heads * in_turn, head = number % shape.heads;
  const int last = min(first + in_turn, shape.sequences);
#pragma unroll 1
  for (int sequence = first; sequence < last;) {
    int rows = 0;
    if constexpr (kParts == 1) {
      rows = sequences_sharing<kMostRows, kMostPages>(shape, sequence);
    } else {
      rows = sequences_sharing_many<kMostRows>(shape, sequence);
    }
    if (rows > 0 && shape.offsets[sequence + 1] > shape.offsets[sequence]) {
      attend_to_source<T, kParts>(shape, out, q, keys, values, sequence, head, rows, parts);
    }
    sequence += max(rows, 1);
  }
  // Block 0 waits even if it has no work, so that the kernel does not complete before its
  // predecessors. The other blocks without work make room for the next ones at once.
  if (blockIdx.x == 0) wait_for_inputs();
}

template <class T, int kParts>
void launch_parts(const AttentionArguments& a, const Stream& stream) {
  constexpr int kOfBlock = kWarps / kParts;
  const int64_t sequences = a.pages->sequences();
  const int64_t room = int64_t{multiprocessors()} * kBlocksPerSm * kOfBlock;
  int in_turn = 1;
  while (in_turn < kMostInTurn && sequences * a.heads > in_turn * room) in_turn *= 2;
  const int64_t all = (sequences + in_turn - 1) / in_turn * a.heads;
  const auto blocks = static_cast<unsigned>((all + kOfBlock - 1) / kOfBlock);
  launch(paged_sources_kernel<T, kParts>, dim3(blocks), dim3(32 * kWarps), 0, stream,
         PagedShape(a, true), static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<const T*>(a.key_cache), static_cast<const T*>(a.value_cache), in_turn);
}

bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kVector == 0;
}

}  // namespace

template <class T>
bool paged_sources_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim != kDim || a.heads != a.kv_heads || a.queries->max_seqlen() != 1 ||
      !a.mask.full() || a.bias || a.soft_cap > 0.0f || a.cache_format.float8 ||
      !aligned(a.q.data, a.q.stride) || !aligned(a.out, a.out_stride) || !aligned(a.key_cache, 0) ||
      !aligned(a.value_cache, 0)) {
    return false;
  }
  const int64_t keys = a.pages->max_context();
  if (keys <= std::min<int64_t>(kMostKeys, kMostPages * a.pages->page_size())) {
    launch_parts<T, 1>(a, stream);
  } else if (keys <= kMostKeysInParts && a.pages->sequences() * a.heads >= kFewestInParts) {
    launch_parts<T, kWarps>(a, stream);
  } else {
    return false;
  }
  return true;
}

#define INSTANTIATE(T) \
  template bool paged_sources_attention<T>(const AttentionArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
