// Whether an instance's admission would refuse a request now, by its block.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "tritonserver/admission_block.h"
#include "tritonserver/on_the_way.h"

namespace admission {

// What a request says of itself: texts, ids or images of an encoder; or what is generated.
struct Asked {
  std::string tenant;
  int64_t priority = 0;              // lower numbers first
  double timeout_s = 0;              // 0: it names none
  std::vector<uint64_t> text_bytes;  // of each row, with its pair
  uint64_t longest_text = 0;         // bytes, of one text alone
  bool has_pairs = false;
  uint64_t id_rows = 0, id_length = 0;
  uint64_t images = 0;
  // Of generation: the prompt, and the most tokens of the answer.
  uint64_t prompt_characters = 0, prompt_tokens = 0;  // of a text, or of ids
  int64_t largest_id = -1;
  uint64_t new_tokens = 0;
};

// An instance that works says so more often, with every request and micro-batch: one that has not
// done so lately rests, is being replaced, or hangs.
inline bool is_fresh(const Block& block, double at) {
  constexpr double old_s = 0.1;
  return at - block.real(now) < old_s;
}

struct Judgement {
  // The instance's own (engine/backlog.py, Backlog._judge; engine/admission.py). Empty where it
  // would take the request, or where that is not known: of what is refused here, it would take
  // nothing behind those on the way.
  std::string words;
  double seconds = 0;  // of an encoder's time that the request takes; 0: not known
};

// `at`: by CLOCK_MONOTONIC; `chance`: within 0..1.
Judgement judgement(const Block& block, const Asked& asked, const OnTheWay& on_the_way, double at,
                    double chance);

// Of a model that generates.
std::string judged_generation(const Block& block, const Asked& asked, double at);

}  // namespace admission
