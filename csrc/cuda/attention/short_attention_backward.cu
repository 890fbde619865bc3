// The backward pass of packed attention for short sequences: a block holds all queries and keys of
// a head of a sequence in shared memory, reads them once, and computes dq, dk and dv from them
// (flash_backward_step.h). Warps take blocks of 16 queries and of 16 keys in turn, so a sequence of
// 28 tokens costs 2 of each, where tiles of 64 rows would leave most of tensor cores' work unused.
#include "cuda/attention/flash_backward_step.h"
#include "cuda/attention/short_attention.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

template <class Element, int dim>
struct ShortTile : SharedRows<Element, dim, 16> {
  static constexpr int kOwn = kShortSequence;

  // Of log_sum_exp and dots of the queries, of q, dout, k and v, and of the dropout mask.
  __host__ __device__ static int bytes(const ShortRoom& room, bool drops) {
    return 2 * kOwn * static_cast<int>(sizeof(float)) +
           2 * (room.queries + room.keys) * ShortTile::kStride +
           (drops ? room.queries * room.keys / kDropoutGroup : 0);
  }
};

// blockIdx.x is sequence * heads + head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 4)
    short_backward_kernel(AttentionBackwardShape<typename Tile::T> g, ShortRoom room,
                          bool vectors_in, bool vectors_out) {
  constexpr int kOther = Tile::kOther, kStride = Tile::kStride;
  extern __shared__ __align__(128) char shared[];
  const AttentionShape& shape = g.forward;
  let_next_start();
  const int sequence = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads;
  const AttendedSequence of = whole_sequence(shape, sequence);
  wait_for_inputs();
  if (of.queries + of.keys == 0) return;

  float* const log_sum_exp = reinterpret_cast<float*>(shared);
  float* const dots = log_sum_exp + Tile::kOwn;
  char* const q = reinterpret_cast<char*>(dots + Tile::kOwn);
  char* const dout = q + room.queries * kStride;
  char* const k = dout + room.queries * kStride;
  char* const v = k + room.keys * kStride;
  uint8_t* const mask = reinterpret_cast<uint8_t*>(v + room.keys * kStride);
  const int dim = shape.head_dim, column = head * dim;
  const auto copy = [&](char* to, const auto* from, int64_t row, int64_t stride, int count) {
    Tile::copy_rows(to, from + row * stride + column, stride, count, padded<Tile>(count), dim,
                    vectors_in);
  };
  copy(q, g.q, of.token, shape.q_stride, of.queries);
  copy(dout, g.dout, of.token, g.dout_stride, of.queries);
  copy(k, g.k, of.key, shape.k_stride, of.keys);
  copy(v, g.v, of.key, shape.v_stride, of.keys);
  end_copies();
  sum_dots<Tile>(log_sum_exp, dots, g, of.token, of.queries, head, nullptr, vectors_in);
  const WeightDropout dropout = resolved(shape.dropout);
  const int groups = padded<Tile>(of.keys) / kDropoutGroup;
  if (dropout.any) {
    draw_short_mask<Tile::kThreads>(mask, dropout, shape.heads, head, of, groups);
  }
  wait_copies<0>();
  __syncthreads();

  const int lane = threadIdx.x % 32;
  const uint32_t own_lane = Tile::offset(lane % 16, lane / 16);
  const float scale[2] = {shape.scale, shape.scale}, one[2] = {1.0f, 1.0f};
  BackwardStep step;
  step.groups = groups;
  const auto at_query = [&](int query, int key) {
    step.log_sum_exp = log_sum_exp + query;
    step.dots = dots + query;
    step.mask = mask + query * groups + key / kDropoutGroup;
    step.nearest = key - (of.position() + query);
    step.keys = of.keys - key;
  };
  const int query_blocks = (of.queries + kWarpRows - 1) / kWarpRows;
  const int blocks = query_blocks + (of.keys + kWarpRows - 1) / kWarpRows;
  for (int block = threadIdx.x / 32; block < blocks; block += Tile::kThreads / 32) {
    if (block < query_blocks) {
      const int own = block * kWarpRows, own_rows = min(of.queries - own, kWarpRows);
      const SeenRange seen = keys_seen<kOther>(of, shape, own, own + own_rows);
      step.own_first = shared_address(q) + own * kStride + own_lane;
      step.own_second = shared_address(dout) + own * kStride + own_lane;
      float dq[Tile::kChunks][4] = {}, none[1][4];
      for (int key = seen.begin; key < seen.end; key += kOther) {
        at_query(own, key);
        step.first = shared_address(k) + key * kStride;
        step.second = shared_address(v) + key * kStride;
        add_step<Tile, false>(dq, none, shape, step, head);
      }
      store_rows<Tile>(dq, g.dq + (of.token + own) * g.dq_stride + column, g.dq_stride, own_rows,
                       dim, scale, vectors_out);
    } else {
      const int own = (block - query_blocks) * kWarpRows, own_rows = min(of.keys - own, kWarpRows);
      const SeenRange seeing = queries_seeing<kOther>(of, shape, own, own + own_rows);
      step.own_first = shared_address(k) + own * kStride + own_lane;
      step.own_second = shared_address(v) + own * kStride + own_lane;
      float dk[Tile::kChunks][4] = {}, dv[Tile::kChunks][4] = {};
      for (int query = seeing.begin; query < seeing.end; query += kOther) {
        at_query(query, own);
        step.first = shared_address(q) + query * kStride;
        step.second = shared_address(dout) + query * kStride;
        add_step<Tile, true>(dk, dv, shape, step, head);
      }
      store_rows<Tile>(dk, g.dk + (of.key + own) * g.dk_stride + column, g.dk_stride, own_rows, dim,
                       scale, vectors_out);
      store_rows<Tile>(dv, g.dv + (of.key + own) * g.dv_stride + column, g.dv_stride, own_rows, dim,
                       one, vectors_out);
    }
  }
}

template <class Tile>
void launch_short(const AttentionBackwardArguments& g, const Stream& stream) {
  using T = typename Tile::T;
  const AttentionArguments& a = g.forward;
  const bool vectors_in = attention_vectors_fit<T>(a) && vectors_fit<T>(g.dout.data, g.dout.stride);
  const bool vectors_out = a.head_dim % Vector<T>::kSize == 0 &&
                           vectors_fit<T>(g.dq, g.dq_stride) && vectors_fit<T>(g.dk, g.dk_stride) &&
                           vectors_fit<T>(g.dv, g.dv_stride);
  constexpr auto kKernel = short_backward_kernel<Tile>;
  constexpr int kMost = padded<Tile>(kShortSequence);
  allow_shared_memory<kKernel>(Tile::bytes({kMost, kMost}, true), stream);
  const ShortRoom room = room_of<Tile>(a);
  launch(kKernel, dim3(static_cast<unsigned>(a.queries->sequences() * a.heads)),
         dim3(Tile::kThreads), Tile::bytes(room, a.dropout.probability > 0), stream,
         AttentionBackwardShape<T>(g), room, vectors_in, vectors_out);
}

}  // namespace

bool short_attention_backward_fits(const AttentionBackwardArguments& g) {
  return short_sequences(g.forward) && g.forward.heads == g.forward.kv_heads && !g.dbias;
}

template <class T>
void short_attention_backward(const AttentionBackwardArguments& g, const Stream& stream) {
  if (g.forward.head_dim <= 32) return launch_short<ShortTile<T, 32>>(g, stream);
  launch_short<ShortTile<T, 64>>(g, stream);
}

template void short_attention_backward<__half>(const AttentionBackwardArguments&, const Stream&);
template void short_attention_backward<__nv_bfloat16>(const AttentionBackwardArguments&,
                                                      const Stream&);

}  // namespace fusewire::cuda
