// Philox4x32: random numbers from a key and a counter, with no state between calls (Salmon, Moraes,
// Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3).
#pragma once

#include <cstdint>

namespace fusewire {

inline constexpr int kPhiloxRounds = 10;  // the authors' default
inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53, kPhiloxFactor2 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9, kPhiloxKeyStep1 = 0xBB67AE85;

struct PhiloxWords {
  uint32_t x[4];
};

// Static, as the function below, so that code compiled for one instruction set never serves the
// others (cpu/vec.h).
template <int kRounds = kPhiloxRounds>
static constexpr PhiloxWords philox(uint64_t key, PhiloxWords counter) {
  uint32_t (&x)[4] = counter.x;
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxFactor0} * x[0], b = uint64_t{kPhiloxFactor2} * x[2];
    const uint32_t y0 = static_cast<uint32_t>(b >> 32) ^ x[1] ^ key0;
    const uint32_t y2 = static_cast<uint32_t>(a >> 32) ^ x[3] ^ key1;
    x[0] = y0;
    x[1] = static_cast<uint32_t>(b);
    x[2] = y2;
    x[3] = static_cast<uint32_t>(a);
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return counter;
}

// Returns a uniform number in [0, 1) with 53 bits, from the first two words of Philox with the key
// `seed` and the counter `step`.
static constexpr double philox_uniform(uint64_t seed, uint64_t step) {
  const PhiloxWords words =
      philox(seed, {{static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), 0, 0}});
  const uint64_t bits = static_cast<uint64_t>(words.x[1]) << 32 | words.x[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace fusewire
