// Decides from an instance's block whether its admission would refuse a request now.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "tritonserver/admission_block.h"
#include "tritonserver/on_the_way.h"

namespace admission {

// What a request asks for: texts, ids or images for an encoder, or a generation.
struct Asked {
  std::string tenant;
  int64_t priority = 0;              // lower numbers come first
  double timeout_s = 0;              // 0: none given
  std::vector<uint64_t> text_bytes;  // of each row, including its pair
  uint64_t longest_text = 0;         // bytes of a single text
  bool has_pairs = false;
  uint64_t id_rows = 0, id_length = 0;
  uint64_t images = 0;
  // For generation: the prompt, and the most tokens of the answer.
  uint64_t prompt_characters = 0, prompt_tokens = 0;  // of a text, or of ids
  int64_t largest_id = -1;
  uint64_t new_tokens = 0;
};

// Returns whether the block was updated lately. An instance at work updates it more often, with
// every request and micro-batch; otherwise it is idle, is being replaced, or hangs.
inline bool is_fresh(const Block& block, double at) {
  constexpr double old_s = 0.1;
  return at - block.real(now) < old_s;
}

struct Judgement {
  // The instance's own message (engine/backlog.py, Backlog._judge; engine/admission.py). Empty if
  // it would accept the request, or if this is not known. A request with a message would also be
  // refused by the instance once those on the way have been judged.
  std::string words;
  double seconds = 0;  // of an encoder's time that the request takes; 0: not known
};

// Judges a request at the time `at` (CLOCK_MONOTONIC); `chance`: a random number in 0..1.
Judgement judgement(const Block& block, const Asked& asked, const OnTheWay& on_the_way, double at,
                    double chance);

// Returns the message for a model that generates; empty: accepted, or not known.
std::string judged_generation(const Block& block, const Asked& asked, double at);

}  // namespace admission
