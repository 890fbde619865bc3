// The rows of a tile, and the copies of keys and values from the pages of their sequence to shared
// memory.
#pragma once

#include "cuda/element.h"
#include "cuda/mma.h"
#include "cuda/paged/paged_schedule.h"
#include "cuda/paged/stored.h"

namespace fusewire::cuda {

// The work of one block. Key tiles of kKeys keys are counted from the sequence's first position.
template <class Tile>
struct PagedWork {
  using T = typename Tile::T;

  const PagedShape& shape;
  const PagedItem item;
  int rows;                   // how many of the tile's kRows rows exist
  int old;                    // the position of the sequence's first new token
  int begin, end;             // the positions that any row of the tile sees
  int all_from, all_to;       // all rows see the positions from all_from to all_to
  int first_tile, last_tile;  // the key tiles of this block: [first, last)
  int parts;                  // how many parts of the keys are not empty

  __device__ __forceinline__ PagedWork(const PagedShape& shape, const PagedItem& item)
      : shape(shape), item(item) {
    rows = min(item.tokens * shape.group - item.first_row, Tile::kRows);
    old = item.context - item.tokens;
    begin = max(position(0) - shape.left, 0);
    end = last_seen(position(rows - 1)) + 1;
    all_from = position(rows - 1) - shape.left;
    all_to = last_seen(old);
    const int first = begin / Tile::kKeys;
    const int count = (end + Tile::kKeys - 1) / Tile::kKeys - first;
    const int share = (count + item.parts - 1) / item.parts;
    parts = (count + share - 1) / share;
    first_tile = first + item.part * share;
    last_tile = min(first_tile + share, first + count);
  }

  __device__ __forceinline__ int token(int row) const {
    return (item.first_row + row) / shape.group;
  }
  __device__ __forceinline__ int position(int row) const { return old + token(row); }
  // Returns the last position that a row at `position` sees.
  __device__ __forceinline__ int last_seen(int position) const {
    return min(position + shape.right, item.context - 1);
  }
  __device__ __forceinline__ int query_head(int row) const {
    return item.head * shape.group + (item.first_row + row) % shape.group;
  }
  __device__ __forceinline__ const int32_t* table() const {
    return shape.table + int64_t{item.sequence} * shape.table_width;
  }
  // Returns the row of the cache that holds a position, looked up in the sequence's block table.
  // Row is the integer type that it is computed in.
  template <class Row = int>
  __device__ __forceinline__ Row cache_row(const int32_t* table, int position) const {
    const int page = table[position >> shape.page_shift];
    const int in_page = position & ((1 << shape.page_shift) - 1);
    return ((Row{page} * shape.kv_heads + item.head) << shape.page_shift) + in_page;
  }
  __device__ __forceinline__ const T* query(const T* q, int row) const {
    return q + (item.token + token(row)) * shape.q_stride + query_head(row) * shape.head_dim;
  }
  __device__ __forceinline__ T* answer(T* out, int row) const {
    return out + (item.token + token(row)) * shape.out_stride + query_head(row) * shape.head_dim;
  }
};

// Loads Vector<T>::kSize elements of a row from column `column` on, zeros from column `width` on.
template <class T>
__device__ __forceinline__ uint4 load_elements(const T* row, int column, int width) {
  Vector<T> vector;
#pragma unroll
  for (int i = 0; i < Vector<T>::kSize; ++i) {
    vector.at[i] = column + i < width ? row[column + i] : from_float<T>(0.0f);
  }
  return *reinterpret_cast<const uint4*>(&vector);
}

// Each warp of a team copies kWarpKeys of the keys of a tile, and as many of its lanes look up
// their rows in the cache.
template <class Tile>
struct PageWalk {
  using Stored = typename Tile::Stored;  // the element type of the cache
  static constexpr int kWarpKeys = Tile::kKeys / Tile::kWarps;
  static constexpr int kSize = Vector<Stored>::kSize, kChunks = Tile::kDim / kSize;
  static_assert(kWarpKeys <= 32 && kWarpKeys * kChunks % 32 == 0);

  const PagedWork<Tile>& work;
  const int32_t* table;  // the block table of the sequence
  const Stored *keys, *values;
  const int first_key;  // the warp's first key in a tile

  __device__ __forceinline__ PageWalk(const PagedWork<Tile>& work, const Stored* keys,
                                      const Stored* values, int warp)
      : work(work), table(work.table()), keys(keys), values(values), first_key(warp * kWarpKeys) {}

  // Returns the row of the cache that this lane looks up for a tile, or -1 if no row of the tile
  // sees the key. Entries of the block table beyond the context, or before the window, are not
  // read.
  __device__ __forceinline__ int row_of(int tile) const {
    const int position = tile * Tile::kKeys + first_key + threadIdx.x % kWarpKeys;
    if (tile >= work.last_tile || position < work.begin || position >= work.end) return -1;
    return work.cache_row(table, position);
  }

  // Copies keys and values to `stage`. Those that are not seen become zeros, because their memory
  // may hold anything, NaN too.
  __device__ __forceinline__ void fetch(char* stage, int row) const {
    const int lane = threadIdx.x % 32, head_dim = work.shape.head_dim;
    const uint32_t base = shared_address(stage);
#pragma unroll
    for (int i = 0; i < kWarpKeys * kChunks; i += 32) {
      const int key = (i + lane) / kChunks, chunk = (i + lane) % kChunks;
      const int from = __shfl_sync(0xffffffffu, row, key);
      const int64_t at = int64_t{max(from, 0)} * head_dim;
      const int key_at = Tile::key_offset(first_key + key, chunk);
      const int value_at = Tile::kKeyBytes + Tile::value_offset(first_key + key, chunk);
      if (work.shape.vectors) {
        const bool wanted = from >= 0 && chunk * kSize < head_dim;
        const int64_t source = wanted ? at + chunk * kSize : 0;
        copy_16(base + key_at, keys + source, wanted);
        copy_16(base + value_at, values + source, wanted);
      } else {
        const int width = from >= 0 ? head_dim : 0;
        *reinterpret_cast<uint4*>(stage + key_at) = load_elements(keys + at, chunk * kSize, width);
        *reinterpret_cast<uint4*>(stage + value_at) =
            load_elements(values + at, chunk * kSize, width);
      }
    }
  }
};

}  // namespace fusewire::cuda
