// Philox4x32-10: a random number from a key and a counter, with no state between calls (Salmon,
// Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3).
#pragma once

#include <cstdint>

namespace fusewire {

// Uniform in [0, 1), with 53 bits: the first two words of Philox with the key `seed` and the
// counter `step`. Static, so that no instruction set's copy serves the others (cpu/vec.h).
static constexpr double philox_uniform(uint64_t seed, uint64_t step) {
  uint32_t x[4] = {static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0], b = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t y0 = static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0];
    const uint32_t y2 = static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1];
    x[0] = y0;
    x[1] = static_cast<uint32_t>(b);
    x[2] = y2;
    x[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = static_cast<uint64_t>(x[1]) << 32 | x[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace fusewire
