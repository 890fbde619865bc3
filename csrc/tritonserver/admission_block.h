// The layout of the shared memory in which the admission of a model instance publishes its state,
// in words of 8 bytes, and atomic access to it (backend/fusewire/engine/admission_block.py writes
// and explains it).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace admission {

// The first word of a block, which identifies its layout.
constexpr uint64_t encoder = 0x6675736577010004, generation = 0x6675736577020003;

constexpr size_t name_bytes = 48, name = 49, most_name_bytes = 8 * (96 - name);
constexpr size_t levels = 96, priorities = 97, regions = 105, most_levels = 8;
constexpr size_t tenants = 128, most_tenants = 64, most_priorities = 8;
constexpr size_t text_words = 64;
constexpr size_t tenant_words = 1 + text_words + 1 + 2 * most_priorities;
constexpr size_t ring = 5504, ring_words = 1 + text_words, ring_entries = 256;

// Slots (engine/due_slots.py) are two trees over the same leaves: one of their work, one of their
// latest times.
constexpr size_t near_slots = 4096, octave = 128, slots = 2 * near_slots;
constexpr size_t region_words = 4 * slots;
constexpr size_t work = 22528, most_regions = 9;
constexpr size_t encoder_bytes = 8 * (work + most_regions * region_words);
constexpr size_t generation_bytes = 8 * work;

// For generation the levels of an encoder are replaced by forecasts, each for a priority and all
// higher ones: the free slots and pages and when they are free, the last deadline of the waiting
// sequences of that priority, since when there has been no room, and the ends of sequences after
// that time: time, slots, pages.
constexpr size_t forecasts = 96, most_forecasts = 8, most_ends = 128;
constexpr size_t forecast_words = 7 + 3 * most_ends;
enum ForecastWord : size_t {
  of_priority,
  free_slots,
  free_pages,
  begins,
  last_deadline,
  full_since,
  ends,
  first_end,
};

// Then follow the tenants above their share: their number, and for each the length of its name,
// what it was given, and the name.
constexpr size_t above = 3328, most_above = 32, above_words = 2 + text_words;

enum Word : size_t {
  layout,
  sequence,
  instances,
  model_version,
  most_rows,
  takes,
  max_length,
  max_characters,
  image_height,
  image_width,
  head,
  tail,
  now = 16,
  requests,
  busy_until,
  begin,
  width_s,
  active,
  oldest_asked,
  window_s,
  due_factor,
  forget_s,
  unseen_s,
  unseen_share,
  slo_s,
  max_queue_s,
  margin_s,
  most_margin,
  above_share,
  s_of_token,
  s_of_square,
  tokens_of_byte,
  tokens_of_image,
  jitter,
  least_retry_s,
  none_s,
  judgements,
};
enum GenerationWord : size_t {
  vocabulary = 8,
  max_request_tokens,
  taken = 17,
  max_sequences,
  max_waiting,
  longest_queue_s,
  objective_s,
  share,
  s_of_prompt_token,
  step_s,
  pages,
  page_size,
  characters_of_token,
  kept_until,
  active_tenants,
  first_asked,
  active_window_s,
  fair,
  waiting_s,
  above_parts,
  generation_due_factor,
  generation_forget_s,
  generation_unseen_s,
  generation_unseen_share,
  standing_share,
};
enum Takes : int64_t {
  texts = 1,
  pairs = 2,
  only_pairs = 4,
  ids = 8,
  windows = 16,
  images = 32,
  sources = 64,  // the model is an encoder-decoder: a prompt does not reduce the room for generated
                 // tokens
};

class Block {
 public:
  explicit Block(void* memory) : words_(static_cast<uint64_t*>(memory)) {}

  int64_t whole(size_t word) const {
    return static_cast<int64_t>(__atomic_load_n(words_ + word, __ATOMIC_RELAXED));
  }
  double real(size_t word) const {
    const uint64_t bits = __atomic_load_n(words_ + word, __ATOMIC_RELAXED);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  uint64_t acquire(size_t word) const { return __atomic_load_n(words_ + word, __ATOMIC_ACQUIRE); }
  void release(size_t word, uint64_t value) {
    __atomic_store_n(words_ + word, value, __ATOMIC_RELEASE);
  }
  char* text(size_t word) { return reinterpret_cast<char*>(words_ + word); }
  const char* text(size_t word) const { return reinterpret_cast<const char*>(words_ + word); }
  void* memory() const { return words_; }

 private:
  uint64_t* words_;
};

}  // namespace admission
