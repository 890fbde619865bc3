// Whether an instance's admission would refuse a request now, by its block.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "tritonserver/admission_block.h"

namespace admission {

// What a request says of itself. Either texts or ids.
struct Asked {
  std::string tenant;
  int64_t priority = 0;              // lower numbers first
  double timeout_s = 0;              // 0: it names none
  std::vector<uint64_t> text_bytes;  // of each row, with its pair
  uint64_t longest_text = 0;         // bytes, of one text alone
  bool has_pairs = false;
  uint64_t id_rows = 0, id_length = 0;
};

// An instance that works says so more often, with every request and micro-batch: one that has not
// done so lately rests, is being replaced, or hangs.
inline bool is_fresh(const Block& block, double at) {
  constexpr double old_s = 0.1;
  return at - block.real(now) < old_s;
}

// The instance's own words (engine/backlog.py, Backlog._judge). Empty where it would take the
// request, or where that is not known: of what is refused here, it would take nothing. `at`: by
// CLOCK_MONOTONIC; `chance`: within 0..1.
std::string refusal(const Block& block, const Asked& asked, double at, double chance);

}  // namespace admission
