// Packed attention in training for short sequences: a block holds all queries and keys of a head of
// a sequence in shared memory, and each of its warps takes blocks of 16 queries.
#include <cmath>

#include "cuda/activation.h"
#include "cuda/attention/short_attention.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace fusewire::cuda {
namespace {

template <class Element, int dim>
struct ShortTile : SharedRows<Element, dim, 32> {
  __host__ __device__ static int bytes(const ShortRoom& room, bool drops) {
    return (room.queries + 2 * room.keys) * ShortTile::kStride +
           (drops ? room.queries * room.keys / kDropoutGroup : 0);
  }
};

// The softmax of the lane's rows g and g + 8 over the keys so far.
struct RunningSoftmax {
  float top[2] = {-INFINITY, -INFINITY};  // the maximum score of the row
  float total[2] = {};                    // this lane's part of the sum of weights

  // Replaces scores by weights, relative to the new maxima times `scale`. Returns by how much what
  // was relative to the former ones is to be multiplied.
  template <int kN>
  __device__ __forceinline__ void add(float (&scores)[kN][4], float scale, float (&correction)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = top[h];
#pragma unroll
      for (int n = 0; n < kN; ++n)
        most = fmaxf(most, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
      const float reference = most == -INFINITY ? 0.0f : most * scale;
      correction[h] = fast_exp2(fmaf(top[h], scale, -reference));
      top[h] = most;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& w = scores[n][2 * h + i];
          w = fast_exp2(fmaf(w, scale, -reference));
          sum += w;
        }
      }
      total[h] = fmaf(total[h], correction[h], sum);
    }
  }
};

// blockIdx.x is sequence * heads + head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 4)
    short_attention_kernel(AttentionShape shape, const typename Tile::T* queries,
                           const typename Tile::T* keys, const typename Tile::T* values,
                           typename Tile::T* out, ShortRoom room, bool vectors) {
  constexpr int kOther = Tile::kOther, kStride = Tile::kStride, kN = kOther / 8;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int sequence = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads;
  const AttendedSequence of = whole_sequence(shape, sequence);
  wait_for_inputs();
  if (of.queries == 0) return;

  char* const q = shared;
  char* const k = q + room.queries * kStride;
  char* const v = k + room.keys * kStride;
  uint8_t* const mask = reinterpret_cast<uint8_t*>(v + room.keys * kStride);
  const int dim = shape.head_dim, column = head * dim, kv_column = head / shape.group * dim;
  Tile::copy_rows(q, queries + of.token * shape.q_stride + column, shape.q_stride, of.queries,
                  padded<Tile>(of.queries), dim, vectors);
  Tile::copy_rows(k, keys + of.key * shape.k_stride + kv_column, shape.k_stride, of.keys,
                  padded<Tile>(of.keys), dim, vectors);
  Tile::copy_rows(v, values + of.key * shape.v_stride + kv_column, shape.v_stride, of.keys,
                  padded<Tile>(of.keys), dim, vectors);
  end_copies();
  const WeightDropout dropout = resolved(shape.dropout);
  const int groups = padded<Tile>(of.keys) / kDropoutGroup;
  if (dropout.any) {
    draw_short_mask<Tile::kThreads>(mask, dropout, shape.heads, head, of, groups);
  }
  wait_copies<0>();
  __syncthreads();

  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
  const uint32_t own_lane = shared_address(q) + Tile::offset(lane % 16, lane / 16);
  const uint32_t row_lane =
      shared_address(k) + Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t transposed_lane = shared_address(v) + Tile::offset(lane % 16, lane / 16);
  const float scale = shape.scale * kLog2E;
  const unsigned wide = static_cast<unsigned>(shape.left) + shape.right;
  for (int own = threadIdx.x / 32 * kWarpRows; own < of.queries;
       own += Tile::kThreads / 32 * kWarpRows) {
    const int own_rows = min(of.queries - own, kWarpRows);
    const SeenRange seen = keys_seen<kOther>(of, shape, own, own + own_rows);
    float sum[Tile::kChunks][4] = {};
    RunningSoftmax softmax;
    for (int key = seen.begin; key < seen.end; key += kOther) {
      float weight[kN][4] = {};
      multiply_rows<Tile>(weight, own_lane + own * kStride, row_lane + key * kStride);
      const int nearest = key - (of.position() + own), left = of.keys - key;
      if (left < kOther || nearest - (kWarpRows - 1) < -shape.left ||
          nearest + kOther - 1 > shape.right) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int row = group + j / 2 * 8, at = n * 8 + pair + j % 2;
            const unsigned distance = static_cast<unsigned>(nearest + at - row + shape.left);
            if (at >= left || distance > wide) weight[n][j] = -INFINITY;
          }
        }
      }
      float correction[2];
      softmax.add(weight, scale, correction);
      if (key > seen.begin) {
#pragma unroll
        for (int c = 0; c < Tile::kChunks; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[c][j] *= correction[j / 2];
        }
      }
      if (dropout.any) {  // the output is multiplied by the factor at the end
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // Bytes of the four groups of the tile; those of queries beyond the sequence are not
          // used.
          const uint32_t kept = *reinterpret_cast<const uint32_t*>(
              mask + (own + group + 8 * h) * groups + key / kDropoutGroup);
#pragma unroll
          for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              if (!(kept >> (n * 8 + pair + i) & 1)) weight[n][2 * h + i] = 0.0f;
            }
          }
        }
      }
      add_rows<Tile>(sum, weight, transposed_lane + key * kStride);
    }
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = reduce_lanes<4>(softmax.total[h], Sum{});
      inverse[h] = __fdividef(dropout.any ? dropout.factor : 1.0f, total);
      const int row = group + 8 * h;
      if (pair == 0 && row < own_rows) {
        shape.log_sum_exp[head * shape.log_sum_exp_stride + of.token + own + row] =
            (softmax.top[h] * scale + log2f(total)) * (1.0f / kLog2E);
      }
    }
    store_rows<Tile>(sum, out + (of.token + own) * shape.out_stride + column, shape.out_stride,
                     own_rows, dim, inverse, vectors);
  }
}

template <class Tile>
void launch_short(const AttentionArguments& a, const Stream& stream) {
  using T = typename Tile::T;
  constexpr auto kKernel = short_attention_kernel<Tile>;
  constexpr int kMost = padded<Tile>(kShortSequence);
  allow_shared_memory<kKernel>(Tile::bytes({kMost, kMost}, true), stream);
  const ShortRoom room = room_of<Tile>(a);
  launch(kKernel, dim3(static_cast<unsigned>(a.queries->sequences() * a.heads)),
         dim3(Tile::kThreads), Tile::bytes(room, a.dropout.probability > 0), stream,
         AttentionShape(a), static_cast<const T*>(a.q.data), static_cast<const T*>(a.k.data),
         static_cast<const T*>(a.v.data), static_cast<T*>(a.out), room,
         attention_vectors_fit<T>(a));
}

}  // namespace

bool short_attention_fits(const AttentionArguments& a) {
  return a.log_sum_exp && short_sequences(a) && a.scale > 0 && !a.bias && a.soft_cap <= 0;
}

template <class T>
void short_attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim <= 32) return launch_short<ShortTile<T, 32>>(a, stream);
  launch_short<ShortTile<T, 64>>(a, stream);
}

template void short_attention<__half>(const AttentionArguments&, const Stream&);
template void short_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
