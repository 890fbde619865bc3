// Attention of one new token per sequence to a context of few pages, as in translation with beam
// search: hundreds of rows and a few dozen keys.
//
// A warp processes one head of a row and all its keys. Eight lanes read a key, one vector each. The
// warp keeps 16 or 32 keys in registers, then their values. Sums over the lanes of a key leave each
// lane with the score of one key, so that the softmax takes one exponential, and values are loaded
// in the meantime. Blocks share nothing and do not synchronise.
//
// Beams of one source read the same pages. Of four neighbouring sequences, the warp of the first
// one also serves those with the same block table, and reads the keys once. The sums of each row
// are the same as if it were alone.
//
// Keys of earlier steps are fetched before wait_for_inputs(), as in sm90_paged.h, and their values
// are prefetched into L2.
#include <algorithm>

#include "cuda/activation.h"
#include "cuda/element.h"
#include "cuda/launch.h"
#include "cuda/paged/paged_attention.h"
#include "cuda/paged/sequences_sharing.h"
#include "cuda/paged/stored.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

constexpr int kDim = 64, kWarps = 4;
constexpr int kElements = 8;              // per lane: a vector of 16-bit elements
constexpr int kLanes = kDim / kElements;  // lanes per key
constexpr int kAtOnce = 32 / kLanes;      // keys that a warp reads in one instruction
constexpr int kMostRows = 4;              // neighbouring sequences that may share keys
constexpr int kMostPages = 8;
constexpr int kMostKeys = 128;

// The number of loads per lane before a warp with kRows rows computes. With one row it is so small
// that a multiprocessor has registers for all threads that it can hold: hundreds of beams are then
// one wave of blocks.
template <int kRows>
constexpr int kReadsOf = kRows == 1 ? kLanes / 2 : kLanes;

// Keys and values of new tokens, in rows beside those of the queries; null if they are in the cache
// already.
template <class T>
struct NewRows {
  const T *k, *v;
  int64_t k_stride, v_stride;
};

// A lane's elements of a key, in the element type of the cache.
template <class Stored>
using Piece = std::conditional_t<sizeof(Stored) == 1, uint2, uint4>;

template <class T>
__device__ __forceinline__ void to_floats(const uint4& vector, float (&x)[kElements]) {
  const uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<T>(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

template <class T>
__device__ __forceinline__ void to_floats(const uint2& codes, float (&x)[kElements]) {
  const uint2 low = widen_four<__half>(codes.x), high = widen_four<__half>(codes.y);
  to_floats<__half>(uint4{low.x, low.y, high.x, high.y}, x);
}

// Sums each of kCount values over the lanes whose numbers differ in the bits kFirst, kFirst / 2,
// ..., kLast. For each bit, the two halves of the lanes exchange half of their values, so that each
// lane ends up with the sums of kCount / 2^bits values, at the front of x.
template <int kCount, int kFirst, int kLast>
__device__ __forceinline__ void share_sums(float* x) {
  constexpr int kHalf = kCount / 2;
  const bool upper = threadIdx.x & kFirst;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float given = upper ? x[i] : x[i + kHalf], kept = upper ? x[i + kHalf] : x[i];
    x[i] = kept + __shfl_xor_sync(kWholeWarp, given, kFirst);
  }
  if constexpr (kFirst > kLast) share_sums<kHalf, kFirst / 2, kLast>(x);
}

template <class T, class Stored, int kRows>
__global__ void __launch_bounds__(32 * kWarps, kRows == 1 ? 8 : 2)
    paged_short_kernel(const __grid_constant__ PagedShape shape, T* out, const T* q, Stored* keys,
                       Stored* values, const NewRows<T> added) {
  using P = Piece<Stored>;
  constexpr int kReads = kReadsOf<kRows>, kChunk = kReads * kAtOnce;  // keys in registers
  constexpr int kSame = kLanes / kReads;  // lanes that receive the score of the same key
  let_next_start();
  const int lane = threadIdx.x % 32, of_key = lane / kLanes, column = lane % kLanes * kElements;
  const int number = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int sequence = number / shape.heads, head = number % shape.heads;
  if (sequence >= shape.sequences) return wait_for_inputs();
  const int row = shape.offsets[sequence];
  const int rows = kRows == 1 ? 1 : sequences_sharing<kMostRows, kMostPages>(shape, sequence);
  if (rows == 0 || shape.offsets[sequence + 1] == row) return wait_for_inputs();

  const int newest = shape.contexts[sequence] - 1;  // position of the new token, the query
  const int begin = max(newest - shape.left, 0), end = newest + 1;
  const int32_t* const table = shape.table + int64_t{sequence} * shape.table_width;
  // Returns the index of a key's piece in the cache. Also defined for keys beyond the context, so
  // that reading the block table need not wait for the context length.
  const auto place_of = [&](int key, int lane_of_key) {
    const int page = table[min(key >> shape.page_shift, shape.table_width - 1)];
    const int in_page = key & ((1 << shape.page_shift) - 1);
    const auto before = static_cast<uint32_t>(page * shape.heads + head) << shape.page_shift;
    return (before + in_page) * kLanes + lane_of_key;
  };

  P pieces[kReads];  // of keys, then of values
  enum class Which { kStored, kNewest, kBoth };
  // Loads the keys (or values) from `first` on: those stored by earlier steps, the newest, or both.
  // Stores the newest in the cache if it comes from new_rows.
  const auto fetch = [&](Stored* cache, const T* new_rows, int64_t stride, float scale, int first,
                         Which which) {
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      const int key = first + i * kAtOnce + of_key;
      P* const place = reinterpret_cast<P*>(cache) + place_of(key, lane % kLanes);
      if (key == newest) {
        if (which == Which::kStored) continue;
        if (new_rows) {
          const T* const from = new_rows + row * stride + head * kDim + column;
          const auto piece =
              stored<Stored>(*reinterpret_cast<const Pack<T, kElements>*>(from), scale);
          pieces[i] = reinterpret_cast<const P&>(piece);
          *place = pieces[i];
        } else {
          pieces[i] = *place;
        }
      } else if (which != Which::kNewest) {
        pieces[i] = P{};  // keys that are not seen may hold anything, NaN too
        if (key >= begin && key < end) pieces[i] = *place;
      }
    }
  };
  const auto fetch_keys = [&](int first, Which which) {
    fetch(keys, added.k, added.k_stride, shape.k_scale, first, which);
  };
  fetch_keys(0, Which::kStored);
  if (lane >= begin && lane < newest) {
    const uint32_t place = place_of(lane, 0);
    prefetch(reinterpret_cast<P*>(values) + place);
    if (lane >= kChunk) prefetch(reinterpret_cast<P*>(keys) + place);
  }
  wait_for_inputs();

  uint4 query[kRows];
  float sum[kRows][kElements] = {}, top[kRows], total[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    top[r] = -INFINITY;
    total[r] = 0.0f;
    if (r >= rows) continue;
    query[r] =
        *reinterpret_cast<const uint4*>(q + (row + r) * shape.q_stride + head * kDim + column);
  }
  fetch_keys(0, Which::kNewest);
  const float scale = shape.scale * kLog2E;
  const int bias_row = shape.bias ? shape.bias_row(head) : 0;
#pragma unroll 1
  for (int first = 0; first < end; first += kChunk) {
    if (first > 0) fetch_keys(first, Which::kBoth);
    // The key whose score this lane receives.
    const int key = first + lane % kLanes / kSame * kAtOnce + of_key;
    const bool seen = key >= begin && key < end;
    const float bias = shape.bias && seen ? shape.bias_at(bias_row, key - newest) * kLog2E : 0.0f;
    float weight[kRows], score[kRows][kReads];
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      float x[kElements];
      to_floats<T>(pieces[i], x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) continue;
        float y[kElements], even = 0.0f, odd = 0.0f;
        to_floats<T>(query[r], y);
#pragma unroll
        for (int j = 0; j < kElements; j += 2) {
          even = fmaf(x[j], y[j], even);
          odd = fmaf(x[j + 1], y[j + 1], odd);
        }
        score[r][i] = even + odd;
      }
    }
    fetch(values, added.v, added.v_stride, shape.v_scale, first, Which::kBoth);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) continue;
      share_sums<kReads, kLanes / 2, kSame>(score[r]);
#pragma unroll
      for (int other = kSame / 2; other > 0; other /= 2) {
        score[r][0] += __shfl_xor_sync(kWholeWarp, score[r][0], other);
      }
      const float own = seen ? fmaf(score[r][0], scale, bias) : -INFINITY;
      float highest = own;
#pragma unroll
      for (int other = 16; other >= kSame; other /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, other));
      }
      highest = fmaxf(highest, top[r]);
      const float base = highest == -INFINITY ? 0.0f : highest;  // no key so far
      const float before = fast_exp2(top[r] - base);
      weight[r] = fast_exp2(own - base);
      total[r] = fmaf(total[r], before, weight[r]);
      top[r] = highest;
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum[r][j] *= before;
    }
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      float x[kElements];
      to_floats<T>(pieces[i], x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) continue;
        const float p = __shfl_sync(kWholeWarp, weight[r], of_key * kLanes + i * kSame);
#pragma unroll
        for (int j = 0; j < kElements; ++j) sum[r][j] = fmaf(p, x[j], sum[r][j]);
      }
    }
  }

  // Of its eight columns, the lane keeps the sums of two.
  constexpr int kLeft = kElements / kAtOnce;
  const int mine = column + lane / kLanes / 2 * 4 + lane / kLanes % 2 * kLeft;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    share_sums<kElements, 16, kLanes>(sum[r]);
    float all = total[r];
#pragma unroll
    for (int other = 16; other >= kSame; other /= 2) {
      all += __shfl_xor_sync(kWholeWarp, all, other);
    }
    const float factor = all > 0.0f ? __fdividef(shape.v_scale, all) : 0.0f;
    T* const to = out + (row + r) * shape.out_stride + head * kDim + mine;
    *reinterpret_cast<uint32_t*>(to) = pack<T>(sum[r][0] * factor, sum[r][1] * factor);
  }
}

template <class T, class Stored, int kRows>
void launch_over(const AttentionArguments& a, const NewRows<T>& added, const Stream& stream) {
  const int64_t warps = a.pages->sequences() * a.heads;
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  launch(paged_short_kernel<T, Stored, kRows>, dim3(blocks), dim3(32 * kWarps), 0, stream,
         PagedShape(a, true), static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<Stored*>(a.key_cache), static_cast<Stored*>(a.value_cache), added);
}

template <class T, int kRows>
void launch_short(const AttentionArguments& a, const NewRows<T>& added, const Stream& stream) {
  if (a.cache_format.float8) {
    launch_over<T, Float8, kRows>(a, added, stream);
  } else {
    launch_over<T, T, kRows>(a, added, stream);
  }
}

bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kElements == 0;
}

}  // namespace

bool paged_short_fits(const AttentionArguments& a) {
  return a.head_dim == kDim && a.heads == a.kv_heads && a.queries->max_seqlen() == 1 &&
         a.soft_cap <= 0.0f && a.pages->page_size() >= kAtOnce &&
         a.pages->max_context() <=
             std::min<int64_t>(kMostKeys, kMostPages * a.pages->page_size()) &&
         aligned(a.q.data, a.q.stride) && aligned(a.out, a.out_stride) && aligned(a.key_cache, 0) &&
         aligned(a.value_cache, 0);
}

template <class T>
void paged_short_attention(const AttentionArguments& a, const Stream& stream) {
  launch_short<T, kMostRows>(a, {}, stream);
}

template <class T>
bool cached_short_attention(const AttentionArguments& a, const Stream& stream) {
  if (!paged_short_fits(a) || !aligned(a.k.data, a.k.stride) || !aligned(a.v.data, a.v.stride)) {
    return false;
  }
  const NewRows<T> added = {static_cast<const T*>(a.k.data), static_cast<const T*>(a.v.data),
                            a.k.stride, a.v.stride};
  launch_short<T, 1>(a, added, stream);
  return true;
}

#define INSTANTIATE(T)                                                              \
  template void paged_short_attention<T>(const AttentionArguments&, const Stream&); \
  template bool cached_short_attention<T>(const AttentionArguments&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
