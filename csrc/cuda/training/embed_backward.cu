// The gradient of a table from which rows were gathered. Tokens are sorted by the row they used, so
// that the tokens of each row of the table are one run, which is summed in their order: no atomics,
// and the same bits every time.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/runtime/kept_memory.h"

namespace fusewire::cuda {
namespace {

// A warp sums a chunk of sorted tokens, one token per lane. The sum of the part of a run that
// crosses the border of a chunk is stored in `pieces` and added later: each chunk has a row for the
// run that began before it, and one for the run that begins in it.
constexpr int kChunk = kWarp, kTableBlock = 256, kTableWarps = kTableBlock / kWarp;

struct TableArguments {
  float* dtable;
  int64_t dtable_stride, table_rows;
  const int64_t* wide_ids;
  const int32_t* ids;
  const void* dy;
  int64_t dy_stride, tokens, hidden;
  float scale;
  bool accumulate;
  // [tokens]: the ids in ascending order, and their tokens
  uint32_t *keys = nullptr, *order = nullptr;
  float* pieces = nullptr;  // [chunks, 2, hidden]
};

// An id outside of the table is sorted last, as if it were the row after the last one.
__global__ void __launch_bounds__(kTableBlock) number_tokens(TableArguments a) {
  let_next_start();
  wait_for_inputs();
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kTableBlock + threadIdx.x;
  if (t >= a.tokens) return;
  const int64_t id = a.wide_ids ? a.wide_ids[t] : a.ids[t];
  const bool known = id >= 0 && id < a.table_rows;
  a.keys[t] = static_cast<uint32_t>(known ? id : a.table_rows);
  a.order[t] = static_cast<uint32_t>(t);
}

__device__ __forceinline__ void add_to_table(const TableArguments& a, uint32_t row, int64_t column,
                                             float sum) {
  float* to = a.dtable + row * a.dtable_stride + column;
  *to = a.accumulate ? fmaf(sum, a.scale, *to) : sum * a.scale;
}

// A warp sums a chunk in 32 * kWidth columns.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTableBlock) sum_chunks(TableArguments a, int64_t chunks) {
  using P = Pack<T, kWidth>;
  constexpr int kTogether = 4;
  let_next_start();
  wait_for_inputs();
  const int lane = threadIdx.x % kWarp;
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kTableWarps + threadIdx.x / kWarp;
  if (chunk >= chunks) return;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kWarp + lane) * kWidth;
  const int64_t first = chunk * kChunk;
  const int count = static_cast<int>(min(a.tokens - first, int64_t{kChunk}));
  const uint32_t nothing = static_cast<uint32_t>(a.table_rows);
  const uint32_t own_key = lane < count ? a.keys[first + lane] : nothing;
  const uint32_t own_token = lane < count ? a.order[first + lane] : 0;
  const bool from_before = chunk > 0 && a.keys[first - 1] == __shfl_sync(kWholeWarp, own_key, 0);
  const bool goes_on = first + count < a.tokens &&
                       a.keys[first + count] == __shfl_sync(kWholeWarp, own_key, count - 1);
  float sum[kWidth] = {};
  int begin = 0;  // of the current run
  for (int from = 0; from < count; from += kTogether) {
    P packs[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t token = __shfl_sync(kWholeWarp, own_token, (from + i) % kWarp);
      if (from + i < count && c < a.hidden) {
        packs[i] =
            *reinterpret_cast<const P*>(static_cast<const T*>(a.dy) + token * a.dy_stride + c);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = from + i;
      const uint32_t key = __shfl_sync(kWholeWarp, own_key, at % kWarp);
      const uint32_t next = __shfl_sync(kWholeWarp, own_key, (at + 1) % kWarp);
      if (at >= count) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += to_float(packs[i].at[j]);
      const bool last = at + 1 == count;
      if (!last && key == next) continue;
      const bool before = begin == 0 && from_before;
      float* piece = a.pieces + (2 * chunk + (before ? 0 : 1)) * a.hidden;
      if (c < a.hidden && key != nothing) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          if (before || (last && goes_on)) {
            piece[c + j] = sum[j];
          } else {
            add_to_table(a, key, c + j, sum[j]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] = 0.0f;
      begin = at + 1;
    }
  }
}

// A block sums, in 32 columns, the run that begins in a chunk and ends in another one. Each of its
// warps adds every eighth piece.
__global__ void __launch_bounds__(kTableBlock) join_pieces(TableArguments a, int64_t chunks) {
  __shared__ float sums[kTableWarps][kWarp];
  let_next_start();
  wait_for_inputs();
  const int64_t chunk = blockIdx.x, end = (chunk + 1) * kChunk;
  if (end >= a.tokens) return;
  const uint32_t key = a.keys[end - 1];
  const bool begins = chunk == 0 || a.keys[chunk * kChunk - 1] != key;
  if (!begins || a.keys[end] != key || key == static_cast<uint32_t>(a.table_rows)) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kWarp + lane;
  float sum = 0.0f;
  if (c < a.hidden) {
    if (warp == 0) sum = a.pieces[(2 * chunk + 1) * a.hidden + c];
#pragma unroll 4
    for (int64_t other = chunk + 1 + warp; other < chunks && a.keys[other * kChunk] == key;
         other += kTableWarps) {
      sum += a.pieces[2 * other * a.hidden + c];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || c >= a.hidden) return;
#pragma unroll
  for (int w = 1; w < kTableWarps; ++w) sum += sums[w][lane];
  add_to_table(a, key, c, sum);
}

int bits_of(int64_t largest) {
  int bits = 1;
  while (largest >> bits) ++bits;
  return bits;
}

cudaError_t sort(void* memory, size_t& bytes, cub::DoubleBuffer<uint32_t>& keys,
                 cub::DoubleBuffer<uint32_t>& order, const TableArguments& a,
                 const Stream& stream) {
  return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, order, a.tokens, 0,
                                         bits_of(a.table_rows), handle(stream));
}

}  // namespace

template <class T>
void embed_backward(float* dtable, int64_t dtable_stride, int64_t table_rows,
                    const int64_t* wide_ids, const int32_t* ids, const void* dy, int64_t dy_stride,
                    int64_t tokens, int64_t hidden, float scale, bool accumulate,
                    const Stream& stream) {
  if (!accumulate) {
    check(cudaMemset2DAsync(dtable, dtable_stride * sizeof(float), 0, hidden * sizeof(float),
                            table_rows, handle(stream)),
          "dtable");
  }
  if (tokens == 0) return;
  TableArguments a = {dtable,    dtable_stride, table_rows, wide_ids, ids,       dy,
                      dy_stride, tokens,        hidden,     scale,    accumulate};
  const int64_t chunks = (tokens + kChunk - 1) / kChunk;
  cub::DoubleBuffer<uint32_t> keys(nullptr, nullptr), order(nullptr, nullptr);
  size_t sort_bytes = 0;
  check(sort(nullptr, sort_bytes, keys, order, a, stream), "sort of ids");
  const size_t index_bytes = (tokens * sizeof(uint32_t) + 255) / 256 * 256;
  const size_t piece_bytes = (2 * chunks * hidden * sizeof(float) + 255) / 256 * 256;
  char* memory =
      static_cast<char*>(kept_memory(stream, 4 * index_bytes + piece_bytes + sort_bytes));
  const auto indices = [&](int i) { return reinterpret_cast<uint32_t*>(memory + i * index_bytes); };
  keys = {indices(0), indices(1)};
  order = {indices(2), indices(3)};
  a.keys = keys.Current();
  a.order = order.Current();
  a.pieces = reinterpret_cast<float*>(memory + 4 * index_bytes);
  launch(number_tokens, static_cast<unsigned>((tokens + kTableBlock - 1) / kTableBlock),
         kTableBlock, 0, stream, a);
  check(sort(memory + 4 * index_bytes + piece_bytes, sort_bytes, keys, order, a, stream),
        "sort of ids");
  a.keys = keys.Current();
  a.order = order.Current();
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value, kColumns = kWarp * kWidth;
    launch(sum_chunks<T, kWidth>,
           dim3(static_cast<unsigned>((chunks + kTableWarps - 1) / kTableWarps),
                static_cast<unsigned>((hidden + kColumns - 1) / kColumns)),
           kTableBlock, 0, stream, a, chunks);
  };
  if (hidden % Vector<T>::kSize == 0 && vectors_fit<T>(dy, dy_stride)) {
    run(std::integral_constant<int, Vector<T>::kSize>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
  if (chunks == 1) return;
  launch(
      join_pieces,
      dim3(static_cast<unsigned>(chunks - 1), static_cast<unsigned>((hidden + kWarp - 1) / kWarp)),
      kTableBlock, 0, stream, a, chunks);
}

#define INSTANTIATE(T)                                                                      \
  template void embed_backward<T>(float*, int64_t, int64_t, const int64_t*, const int32_t*, \
                                  const void*, int64_t, int64_t, int64_t, float, bool,      \
                                  const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
