// Free blocks binned by size: sixteen bins per power of two, so that the sizes in a bin differ by
// at most 1/16 (small ones not at all), and a bitmap of the occupied bins. A search looks at the
// blocks of one bin, then at the bitmap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusewire {

class FreeLists;
class StreamMemory;

// A part of a segment: its memory, its neighbours by address, and its links in a bin when it is
// free.
struct Block {
  char* data = nullptr;
  size_t bytes = 0;
  Block* left = nullptr;
  Block* right = nullptr;
  Block* previous_free = nullptr;
  Block* next_free = nullptr;
  FreeLists* home = nullptr;  // null: a segment that is never cached
  StreamMemory* stream = nullptr;
  uint64_t freed_at = 0;              // a point of `stream` (core/stream_memory.h)
  std::vector<StreamMemory*> others;  // other streams that use it
  bool free = false;

  bool whole_segment() const { return !left && !right; }
};

class FreeLists {
 public:
  explicit FreeLists(size_t unit) : unit_(unit) {}  // every size is a multiple of `unit`

  size_t segment_bytes = 0;  // total of the segments whose blocks belong here, free or not

  void insert(Block* block) {
    size_t bin = bin_of(block->bytes);
    block->previous_free = nullptr;
    block->next_free = heads_[bin];
    if (block->next_free) block->next_free->previous_free = block;
    heads_[bin] = block;
    occupied_[bin / 64] |= uint64_t{1} << bin % 64;
  }

  void remove(Block* block) {
    if (block->next_free) block->next_free->previous_free = block->previous_free;
    if (block->previous_free) {
      block->previous_free->next_free = block->next_free;
      return;
    }
    size_t bin = bin_of(block->bytes);
    heads_[bin] = block->next_free;
    if (!heads_[bin]) occupied_[bin / 64] &= ~(uint64_t{1} << bin % 64);
  }

  // Removes and returns a block of at least `bytes`: the smallest that fits of its own bin, else
  // the first of the next occupied bin. Null if there is none.
  Block* take(size_t bytes) {
    size_t bin = bin_of(bytes);
    Block* best = nullptr;
    for (Block* block = heads_[bin]; block; block = block->next_free) {
      if (block->bytes < bytes || (best && best->bytes <= block->bytes)) continue;
      best = block;
      if (best->bytes == bytes) break;
    }
    if (!best) best = first_above(bin);
    if (best) remove(best);
    return best;
  }

  // As `take`, but returns the first block that `accept` allows. May look at all that are large
  // enough.
  template <class Accept>
  Block* take_if(size_t bytes, Accept accept) {
    for (size_t bin = bin_of(bytes); bin < kBins; bin = next_occupied(bin)) {
      for (Block* block = heads_[bin]; block; block = block->next_free) {
        if (block->bytes < bytes || !accept(*block)) continue;
        remove(block);
        return block;
      }
    }
    return nullptr;
  }

  // Removes every block that is a whole segment and was freed at point `last` or before; calls
  // visit(block).
  template <class Visit>
  void take_whole_segments(uint64_t last, Visit visit) {
    for (Block* head : heads_) {
      for (Block* block = head; block;) {
        Block* next = block->next_free;
        if (block->whole_segment() && block->freed_at <= last) {
          remove(block);
          visit(block);
        }
        block = next;
      }
    }
  }

 private:
  static constexpr size_t kBins = 1024;  // up to 2^67 units: every size_t has a bin

  size_t bin_of(size_t bytes) const {
    size_t units = bytes / unit_;
    if (units < 16) return units;
    size_t exponent = 63 - static_cast<size_t>(__builtin_clzll(units));
    return (exponent - 3) * 16 + (units >> (exponent - 4)) % 16;
  }

  // Returns the next occupied bin, or kBins if there is none.
  size_t next_occupied(size_t bin) const {
    ++bin;
    for (size_t word = bin / 64; word < kBins / 64; ++word) {
      uint64_t bits = occupied_[word];
      if (word == bin / 64) bits &= ~uint64_t{0} << bin % 64;
      if (bits) return word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
    }
    return kBins;
  }

  Block* first_above(size_t bin) const {
    bin = next_occupied(bin);
    return bin < kBins ? heads_[bin] : nullptr;
  }

  size_t unit_;
  std::array<Block*, kBins> heads_{};
  std::array<uint64_t, kBins / 64> occupied_{};
};

}  // namespace fusewire
