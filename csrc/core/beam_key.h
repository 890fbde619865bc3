// Maps the candidates of beam search to integers of the same order: higher score, then lower beam,
// then lower token. The keys of a request's candidates are distinct, so there are no ties.
#pragma once

#include "core/bracket.h"

namespace fusewire {

using BeamKey = uint64_t;  // larger for a better candidate; 0: no candidate

// `position` is beam * vocabulary + token. +0 and -0 are equal; `score` must not be NaN.
FUSEWIRE_EVERYWHERE BeamKey beam_key(float score, uint32_t position) {
  const uint32_t order = static_cast<uint32_t>(order_of(score + 0.0f)) ^ 0x80000000u;
  return static_cast<BeamKey>(order) << 32 | static_cast<uint32_t>(~position);
}
FUSEWIRE_EVERYWHERE uint32_t position_of(BeamKey key) {
  return ~static_cast<uint32_t>(key);
}
FUSEWIRE_EVERYWHERE float score_of(BeamKey key) {
  return ordered(static_cast<int32_t>(static_cast<uint32_t>(key >> 32) ^ 0x80000000u));
}

}  // namespace fusewire
