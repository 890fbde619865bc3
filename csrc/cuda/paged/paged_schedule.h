// The rows and the keys that a block of paged attention works on.
//
// A tile is kRows rows of one sequence and kv head. Its keys are divided among as many blocks as
// keep the device busy (Flash-Decoding, Dao et al. 2023): about `capacity` blocks receive equal
// shares of all keys of the batch. Only the device knows the lengths (a CUDA graph is replayed for
// many batches), so each block computes the shares and counts until it reaches its own.
#pragma once

#include <cstdint>

#include "cuda/paged/paged_attention.h"

namespace fusewire::cuda {

// What the host determines for a launch: it serves the sequences with rows per kv head in (above,
// most], `capacity` blocks run at once, and the rows of a tile see at most `span` keys. The device
// does not compute these, because the divisions before the work of every block would take longer
// than a part of the keys does.
struct PagedPlan {
  int above, most, capacity, span;
};

// The fewest keys of a part that are worth a block.
constexpr int kLeastPart = 128;
// The most parts of a tile of kRows rows: they have at most 2048 rows in total.
template <int kRows>
constexpr int kMostParts = 2048 / kRows;

struct PagedItem {
  int sequence, token, tokens, context;  // token: the packed row of the first new token
  int first_row, head;                   // the tile's first row in the sequence; the kv head
  int part, parts, slot;  // slot: that of part 0 in the scratch; the other parts' slots follow it
};

// Returns the item of block `number`; tokens == 0: none. All 32 lanes of a warp call it and receive
// the same result. Offsets, context lengths and tables are uploaded before the first kernel of a
// chain, so this may be called before wait_for_inputs().
//
// Rounding equal shares up to parts of tiles gives a few more items than blocks that run at once,
// and these would have to wait. Parts therefore grow until there are few enough items, or nearly.
// Where whole tiles are enough for all blocks, only tiles with more than twice the share are
// divided, which would finish long after all others.
//
// Few tiles of few rows that have about as many keys each are divided into equally many parts, all
// of which run at once.
//
// There are never more than tiles * kv_heads + capacity items. At most 2 * capacity of them belong
// to tiles with more than one part, which need slots: a part is at least total / capacity keys, and
// a tile of n > 1 parts has more keys than n - 1 >= n / 2 parts.
template <int kRows>
__device__ __forceinline__ PagedItem find_item(const PagedShape& shape, const PagedPlan& plan,
                                               int number) {
  constexpr int kEach = 4;  // consecutive sequences per lane
  constexpr int kRounds = 3;
  constexpr unsigned kWarp = 0xffffffffu;
  const int lane = threadIdx.x % 32, sequences = shape.sequences;
  struct Load {
    int tiles[kEach], span[kEach];
  };
  const auto read = [&](int first) {
    int offset[kEach + 1], context[kEach];
#pragma unroll
    for (int i = 0; i <= kEach; ++i) offset[i] = shape.offsets[min(first + i, sequences)];
#pragma unroll
    for (int i = 0; i < kEach; ++i) context[i] = shape.contexts[min(first + i, sequences - 1)];
    Load load;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int rows = (offset[i + 1] - offset[i]) * shape.group;
      const bool served = rows > plan.above && rows <= plan.most;
      load.tiles[i] = served ? (rows + kRows - 1) / kRows : 0;
      load.span[i] = served ? min(context[i], plan.span) : 0;
    }
    return load;
  };

  long long total = 0;
  int longest = 0, tiles = 0, behind = 0;  // behind: the end of the last sequence with a tile
#pragma unroll 2
  for (int begin = 0; begin < sequences; begin += 32 * kEach) {
    const int first = begin + lane * kEach;
    const Load load = read(first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      total += static_cast<long long>(load.tiles[i]) * load.span[i];
      longest = max(longest, load.span[i]);
      tiles += load.tiles[i];
      if (load.tiles[i] > 0) behind = first + i + 1;
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    total += __shfl_xor_sync(kWarp, total, distance);
  }
  const auto item_of = [&](int sequence) {
    PagedItem item = {};
    item.sequence = sequence;
    item.token = shape.offsets[sequence];
    item.tokens = shape.offsets[sequence + 1] - item.token;
    item.context = shape.contexts[sequence];
    return item;
  };
  longest = __reduce_max_sync(kWarp, longest);
  tiles = __reduce_add_sync(kWarp, tiles);
  behind = __reduce_max_sync(kWarp, behind);

  constexpr int kMostKeys = INT32_MAX / 2;
  const int whole = tiles * shape.kv_heads;
  const bool fills = whole >= plan.capacity;  // whole tiles are enough for all blocks
  // No tile has more than 5/4 of the mean, and each can have two parts or more.
  const bool even =
      plan.most <= kRows && 2 * whole <= plan.capacity && 4LL * longest * tiles <= 5 * total;
  int part_keys;
  if (even) {
    const int parts = plan.capacity / max(whole, 1);
    part_keys = max((longest + parts - 1) / parts, kLeastPart);
  } else {
    const long long share = (total * shape.kv_heads + plan.capacity - 1) / plan.capacity;
    part_keys =
        static_cast<int>(min(max(fills ? 2 * share : share, static_cast<long long>(kLeastPart)),
                             static_cast<long long>(kMostKeys)));
  }
  // No tile is divided, and the first sequences have one each, as when many are decoded.
  if (longest <= part_keys && plan.most <= kRows && tiles == behind) {
    if (number >= whole) return {};
    PagedItem item = item_of(number / shape.kv_heads);
    item.head = number % shape.kv_heads;
    item.parts = 1;
    return item;
  }
  const auto parts_of = [&](int span) {
    return min((span + part_keys - 1) / part_keys, kMostParts<kRows>);
  };
#pragma unroll 1
  for (int round = 0; round < kRounds && !fills && !even; ++round) {
    int items = 0;
    for (int begin = 0; begin < sequences; begin += 32 * kEach) {
      const Load load = read(begin + lane * kEach);
#pragma unroll
      for (int i = 0; i < kEach; ++i) items += load.tiles[i] * parts_of(load.span[i]);
    }
    items = __reduce_add_sync(kWarp, items) * shape.kv_heads;
    if (items <= plan.capacity) break;
    const float grown = static_cast<float>(part_keys) * items / plan.capacity;
    part_keys = static_cast<int>(fminf(grown, static_cast<float>(kMostKeys))) + 1;
  }

  int slots_before = 0;
  for (int begin = 0; begin < sequences; begin += 32 * kEach) {
    const Load load = read(begin + lane * kEach);
    int items[kEach], parts[kEach], mine = 0, mine_slots = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      parts[i] = parts_of(load.span[i]);
      items[i] = load.tiles[i] * shape.kv_heads * parts[i];
      mine += items[i];
      mine_slots += parts[i] > 1 ? items[i] : 0;
    }
    int through = mine, slots_through = mine_slots;  // of all lanes up to and including this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kWarp, through, distance);
      const int other_slots = __shfl_up_sync(kWarp, slots_through, distance);
      if (lane >= distance) {
        through += other;
        slots_through += other_slots;
      }
    }
    const int all = __shfl_sync(kWarp, through, 31);
    if (number >= all) {
      number -= all;
      slots_before += __shfl_sync(kWarp, slots_through, 31);
      continue;
    }
    int rest = number - (through - mine), slot = slots_before + slots_through - mine_slots;
    const bool here = rest >= 0 && rest < mine;
    int sequence = 0, in_tiles = 0, in_parts = 1, first_slot = 0, left = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (rest >= 0 && rest < items[i]) {
        sequence = begin + lane * kEach + i;
        in_tiles = load.tiles[i];
        in_parts = parts[i];
        first_slot = slot;
        left = rest;
      }
      rest -= items[i];
      slot += parts[i] > 1 ? items[i] : 0;
    }
    const int owner = __ffs(__ballot_sync(kWarp, here)) - 1;
    sequence = __shfl_sync(kWarp, sequence, owner);
    in_tiles = __shfl_sync(kWarp, in_tiles, owner);
    in_parts = __shfl_sync(kWarp, in_parts, owner);
    first_slot = __shfl_sync(kWarp, first_slot, owner);
    left = __shfl_sync(kWarp, left, owner);

    PagedItem item = item_of(sequence);
    item.part = left % in_parts;
    item.parts = in_parts;
    item.slot = first_slot + left - item.part;
    item.head = left / in_parts % shape.kv_heads;
    // The last tile of a sequence, which sees the most keys, starts first.
    item.first_row = (in_tiles - 1 - left / in_parts / shape.kv_heads) * kRows;
    return item;
  }
  return {};
}

}  // namespace fusewire::cuda
