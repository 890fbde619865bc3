// The configurations of the Hopper matrix products, and the kernels for 16-bit operands.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

namespace {

using sm90::tiles;
using Configuration = Sm90Configuration;

constexpr Configuration kLarge[] = {
    {128, 256, 0}, {128, 232, 0},       {128, 184, 0},       {128, 152, 0},
    {128, 120, 0}, {128, 184, 0, true}, {128, 152, 0, true}, {128, 120, 0, true},
};
// The small configurations are all combinations of these tiles and splits.
constexpr Configuration kSmall[] = {{64, 16, 1},  {64, 32, 1},  {64, 64, 1},  {64, 128, 1},
                                    {128, 32, 1}, {128, 64, 1}, {128, 128, 1}};
// For e4m3: registers hold the sums of a large tile twice.
constexpr int kMostPromoted = 152;
constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kLargeCount = sizeof(kLarge) / sizeof(kLarge[0]);
constexpr int kSplitCount = sizeof(kSplits) / sizeof(kSplits[0]);
constexpr int kCount = kLargeCount + sizeof(kSmall) / sizeof(kSmall[0]) * kSplitCount;

Configuration configuration_of(int number, const GemmArguments& a) {
  if (number < kLargeCount) {
    Configuration c = kLarge[number];
    // wgmma of integers needs a multiple of 16 tokens, and tiles of e4m3 in blocks are multiplied
    // in halves.
    if (a.integers || a.blocks) c.tokens -= c.tokens % 16;
    return c;
  }
  Configuration c = kSmall[(number - kLargeCount) / kSplitCount];
  c.split = kSplits[(number - kLargeCount) % kSplitCount];
  return c;
}

}  // namespace

int sm90_gemm_configurations() {
  return kCount;
}

bool sm90_operands_fit(const GemmArguments& a) {
  const bool bytes = a.x.scales != nullptr;
  const auto aligned = [](const void* pointer, int64_t stride) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
  };
  if (bytes && (a.x.stride % 16 != 0 || a.weight.stride % 16 != 0)) return false;
  constexpr int64_t kMost = 1 << 30;
  const bool whole = a.n % 8 == 0;  // otherwise TMA would write between the rows
  return !(a.weight.transposed || !aligned(a.out, a.out_stride) || !aligned(a.x.data, a.x.stride) ||
           !aligned(a.weight.data, a.weight.stride) || !aligned(a.bias, 0) ||
           !aligned(a.residual, a.residual == nullptr ? 0 : a.residual_stride) ||
           (a.residual == a.out && a.residual_stride != a.out_stride) || a.k < 8 ||
           (!whole && (a.bias != nullptr || a.residual != nullptr)) || a.m > kMost || a.n > kMost ||
           a.k > kMost) &&
         // Gated units are computed by groups of 8.
         (a.both == nullptr || (!bytes && a.residual == nullptr && a.n % 16 == 0));
}

bool sm90_gemm_fits(const GemmArguments& a, int configuration) {
  if (!sm90_operands_fit(a)) return false;
  const bool bytes = a.x.scales != nullptr, whole = a.n % 8 == 0;
  const Configuration c = configuration_of(configuration, a);
  const bool promoted = bytes && !a.integers;
  if (c.split == 0 && promoted && (c.ping_pong || c.tokens > kMostPromoted)) return false;
  if (c.split == 0) {  // ping-pong has no registers left for an activation before a residual
    return a.m > 128 && whole &&
           !(c.ping_pong && a.residual != nullptr && a.activation != Activation::kNone);
  }
  // Configurations that cannot be the fastest are not timed: tiles that are mostly padding, and
  // many small tiles.
  const int64_t token_tiles = tiles(a.m, c.tokens);
  const int64_t blocks = tiles(a.n, c.channels) * token_tiles * c.split;
  const bool many = c.tokens == 32 && tiles(a.n, c.channels) > multiprocessors();  // a vocabulary
  return c.split <= tiles(a.k, bytes ? 128 : 64) &&
         (c.tokens == 16 || a.m > c.tokens / 2 || many) && (token_tiles <= 8 || c.tokens == 128) &&
         token_tiles <= 65535 && (blocks <= 2 * multiprocessors() || c.split == 1);
}

int first_sm90_configuration(const GemmArguments& a) {
  for (int i = 0; i < kCount; ++i) {
    if (sm90_gemm_fits(a, i)) return i;
  }
  return -1;
}

template <class T>
void sm90_gemm(const GemmArguments& a, int configuration, const Stream& stream) {
  const Configuration c = configuration_of(configuration, a);
  if (a.integers) return sm90_gemm_int8<T>(a, c, stream);
  if (a.blocks) return sm90_gemm_float8_blocks<T>(a, c, stream);
  if (a.x.scales) return sm90_gemm_float8<T>(a, c, stream);
  if (a.both) return sm90_gemm_gated<T>(a, c, stream);
  sm90::launch_tile<T, T>(a, c, stream);
}

template void sm90_gemm<__half>(const GemmArguments&, int, const Stream&);
template void sm90_gemm<__nv_bfloat16>(const GemmArguments&, int, const Stream&);

}  // namespace fusewire::cuda
