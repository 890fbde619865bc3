// The grids of the kernels of paged attention.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/paged/paged_schedule.h"
#include "cuda/paged/paged_scratch.h"

namespace fusewire::cuda {

struct PagedGrid {
  unsigned blocks;
  PagedPlan plan;
};

// Returns the number of tiles per kv head of the sequences with rows in (above, most]; for a bucket
// an upper bound.
inline int64_t paged_tiles(const SequenceBatch& batch, int64_t group, int64_t rows, int64_t above,
                           int64_t most) {
  if (!batch.begin()) {
    const int64_t served = std::min(batch.sequences(), batch.tokens() * group / (above + 1));
    return std::min(batch.tokens() * group / rows + served, served * ((most + rows - 1) / rows));
  }
  int64_t tiles = 0;
  for (int64_t i = 0; i < batch.sequences(); ++i) {
    const int64_t length = (batch.begin()[i + 1] - batch.begin()[i]) * group;
    if (length > above && length <= most) tiles += (length + rows - 1) / rows;
  }
  return tiles;
}

// Returns a grid of as many blocks as there can be items; surplus blocks return at once.
template <class Tile>
PagedGrid paged_grid(const AttentionArguments& a, const PagedShape& shape, int above, int most) {
  const int64_t tiles = paged_tiles(*a.queries, shape.group, Tile::kRows, above, most) * a.kv_heads;
  const int capacity = std::min(multiprocessors() * Tile::kBlocks, PagedScratch::slots<Tile>() / 2);
  const int most_keys = shape.left + shape.right + Tile::kRows / shape.group + 2;
  const int span = std::min(static_cast<int>(a.pages->max_context()), most_keys);
  const int64_t parts = std::min((span + kLeastPart - 1) / kLeastPart, kMostParts<Tile::kRows>);
  const int64_t blocks = std::min(tiles * parts, tiles + capacity);
  return {static_cast<unsigned>(blocks), PagedPlan{above, most, capacity, most_keys}};
}

}  // namespace fusewire::cuda
