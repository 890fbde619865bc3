// Attention of one new token a sequence to the whole of a short context: beams to their sources, in
// translation, where there are hundreds of rows and a few dozen keys.
//
// A warp has a head of up to kMostRows rows and all their keys, 32 at a time, in registers, from
// the fetch to the tensor cores: which lane fetches which numbers is chosen so that each has what
// its fragments of the products take. Dimensions may be summed in any order, as long as queries and
// keys agree on it, and so may keys. Blocks share nothing and wait for nobody.
//
// Of kMostRows neighbouring sequences those with equal tables are served by the first one's warp,
// which reads the keys once. Each row's sums are the same as by itself. Where more sequences come
// than there is room for warps at once, a warp has several in turn, of which mostly one leads the
// others: warps that find nothing to do would only keep those out that have work.
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
constexpr int kVector = 8;     // numbers of a fetch
constexpr int kChunk = 32;     // keys in registers
constexpr int kMostRows = 16;  // neighbours that may read the same keys
constexpr int kMostPages = 8, kMostKeys = 128;
constexpr int kBlocksPerSm = 3;
constexpr int kMostInTurn = 4;  // sequences of a warp, where it has several

struct Words {
  uint32_t at[4];
};

__device__ __forceinline__ Words words_of(const uint4& vector) {
  return {{vector.x, vector.y, vector.z, vector.w}};
}

// Of one head, `rows` sequences from one on that share their pages.
template <class T>
__device__ __forceinline__ void attend_to_source(const PagedShape& shape, T* out, const T* q,
                                                 const T* keys, const T* values, int sequence,
                                                 int head, int rows) {
  constexpr int kHalves = 2;                                      // of a fragment's rows: g, g + 8
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;  // as in mma.h
  const int row = shape.offsets[sequence];
  const int end = shape.contexts[sequence], newest = end - 1;
  const int32_t* const table = shape.table + int64_t{sequence} * shape.table_width;
  const auto place_of = [&](int key) {
    const int64_t page = table[key >> shape.page_shift];
    const int in_page = key & ((1 << shape.page_shift) - 1);
    return (((page * shape.heads + head) << shape.page_shift) + in_page) * kDim;
  };
  // Of tile j of 8 keys a lane has key g, dimensions 8 t and 32 + 8 t on; of 16 keys' values those
  // of keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, dimensions 8 g on.
  uint4 k[kChunk / 8][2], v[kChunk / 16][4];
  enum class Fetch { kLeave, kZeros, kLoad };
  const auto fetch = [&](int first, bool newest_too) {
    const auto how = [&](int key) {
      if (key == newest) return newest_too ? Fetch::kLoad : Fetch::kLeave;
      if (newest_too && first == 0) return Fetch::kLeave;  // it is there
      return key < end ? Fetch::kLoad : Fetch::kZeros;  // these enter no sum, whatever memory holds
    };
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const int key = first + 8 * j + g;
      const Fetch what = how(key);
      if (what == Fetch::kLeave) continue;
      const T* const from = keys + kVector * t + (what == Fetch::kLoad ? place_of(key) : 0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        k[j][c] = uint4{};
        if (what == Fetch::kLoad) k[j][c] = *reinterpret_cast<const uint4*>(from + 32 * c);
      }
    }
#pragma unroll
    for (int b = 0; b < kChunk / 16; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + 16 * b + 2 * t + i % 2 + i / 2 * 8;
        const Fetch what = how(key);
        if (what == Fetch::kLeave) continue;
        v[b][i] = uint4{};
        if (what == Fetch::kLoad) {
          v[b][i] = *reinterpret_cast<const uint4*>(values + kVector * g + place_of(key));
        }
      }
    }
  };
  fetch(0, false);
  if (lane < 2 && end > 0) prefetch((lane == 0 ? keys : values) + place_of(newest));
  wait_for_inputs();

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
  float sum[kDim / 8][4] = {}, top[kHalves], total[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    top[h] = -INFINITY;
    total[h] = 0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < end; first += kChunk) {
    fetch(first, true);
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

// A warp has a head of `in_turn` sequences.
template <class T>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerSm)
    paged_sources_kernel(const __grid_constant__ PagedShape shape, T* out, const T* q,
                         const T* keys, const T* values, const int in_turn) {
  let_next_start();
  const int number = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int first = number / shape.heads * in_turn, head = number % shape.heads;
  const int last = min(first + in_turn, shape.sequences);
#pragma unroll 1
  for (int sequence = first; sequence < last;) {
    const int rows = sequences_sharing<kMostRows, kMostPages>(shape, sequence);
    if (rows > 0 && shape.offsets[sequence + 1] > shape.offsets[sequence]) {
      attend_to_source(shape, out, q, keys, values, sequence, head, rows);
    }
    sequence += max(rows, 1);
  }
  // One block waits whatever it has to do, so that the kernel does not end before those ahead of
  // it; others make room for the next at once.
  if (blockIdx.x == 0) wait_for_inputs();
}

bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kVector == 0;
}

}  // namespace

template <class T>
bool paged_sources_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim != kDim || a.heads != a.kv_heads || a.queries->max_seqlen() != 1 ||
      !a.mask.full() || a.bias || a.soft_cap > 0.0f || a.cache_format.float8 ||
      a.pages->max_context() > std::min<int64_t>(kMostKeys, kMostPages * a.pages->page_size()) ||
      !aligned(a.q.data, a.q.stride) || !aligned(a.out, a.out_stride) || !aligned(a.key_cache, 0) ||
      !aligned(a.value_cache, 0)) {
    return false;
  }
  const int64_t sequences = a.pages->sequences();
  const int64_t room = int64_t{multiprocessors()} * kBlocksPerSm * kWarps;
  int in_turn = 1;
  while (in_turn < kMostInTurn && sequences * a.heads > in_turn * room) in_turn *= 2;
  const int64_t warps = (sequences + in_turn - 1) / in_turn * a.heads;
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  launch(paged_sources_kernel<T>, dim3(blocks), dim3(32 * kWarps), 0, stream, PagedShape(a, true),
         static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<const T*>(a.key_cache), static_cast<const T*>(a.value_cache), in_turn);
  return true;
}

#define INSTANTIATE(T) \
  template bool paged_sources_attention<T>(const AttentionArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
