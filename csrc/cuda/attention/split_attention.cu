// Packed attention for a batch too small to fill the device, where the time of a kernel is a chain
// of latencies. A block computes 16 queries of one head; its warps share the keys and combine their
// results at the end.
#include <algorithm>

#include "cuda/attention/query_tile.h"
#include "cuda/attention/split_attention.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// blockIdx.x is tile * heads + head. No sequence is longer than kKeys.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    split_kernel(AttentionShape shape, typename Tile::T* out, const typename Tile::T* q,
                 const typename Tile::T* k, const typename Tile::T* v) {
  using T = typename Tile::T;
  extern __shared__ __align__(16) char shared[];
  auto& memory = *reinterpret_cast<SplitMemory<Tile>*>(shared);
  let_next_start();
  const int head = blockIdx.x % shape.heads, number = blockIdx.x / shape.heads;
  const QueryTile tile = find_query_tile<Tile::kRows>(shape.offsets, shape.sequences, number);
  const int kv_head = head / shape.group;
  const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0), first = warp * Tile::kWarpKeys;
  const int rows = tile.length - tile.first_query, count = tile.length - first;
  SplitWarp<Tile> work{memory.part[warp].fetched};
  work.aim(q + (tile.token + tile.first_query) * shape.q_stride + head * Tile::kDim,
           k + (tile.token + first) * shape.k_stride + kv_head * Tile::kDim,
           v + (tile.token + first) * shape.v_stride + kv_head * Tile::kDim, shape);
  work.wait();
  if (rows <= 0) return;

  if (count > 0) {
    work.fetch(rows, count);
    work.weigh(count, shape.scale * kLog2E);
    work.multiply_values();
    work.show(memory, warp);
  }
  __syncthreads();
  add_up<Tile>(memory, (tile.length + Tile::kWarpKeys - 1) / Tile::kWarpKeys,
               out + (tile.token + tile.first_query) * shape.out_stride + head * Tile::kDim, rows,
               shape.out_stride);
}

// Launches as many blocks as the batch can have tiles; surplus blocks return at once. Each block
// requests so much shared memory that it has a multiprocessor to itself: otherwise several would
// share one and wait for one another.
template <class Tile>
void launch_split(const AttentionArguments& a, const Stream& stream) {
  using T = typename Tile::T;
  static const int half = attribute_of_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  const size_t bytes = std::max(sizeof(SplitMemory<Tile>), static_cast<size_t>(half));
  allow_shared_memory<split_kernel<Tile>>(bytes, stream);
  const int64_t blocks = a.queries->query_tiles(Tile::kRows) * a.heads;
  launch(split_kernel<Tile>, dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads), bytes,
         stream, AttentionShape(a), static_cast<T*>(a.out), static_cast<const T*>(a.q.data),
         static_cast<const T*>(a.k.data), static_cast<const T*>(a.v.data));
}

}  // namespace

bool split_attention_fits(const AttentionArguments& a) {
  return plain_attention(a) && a.head_dim == 64 && a.queries->max_seqlen() <= 128 &&
         a.scale * kLog2E > kLeastFactor && attention_vectors_fit<__half>(a) &&
         a.queries->query_tiles(16) * a.heads <= multiprocessors();
}

template <class T>
void split_attention(const AttentionArguments& a, const Stream& stream) {
  launch_split<SplitTile<T, 64, 4, 2>>(a, stream);
}

template void split_attention<__half>(const AttentionArguments&, const Stream&);
template void split_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
