// Launches attention on Hopper: the shapes that it supports and the configuration of its kernel for
// each.
//
// The size of the tiles of keys depends on head_dim only and not on the batch, so the result of
// this kernel for a sequence does not depend on what it was batched with. With more warpgroups per
// team, keys and values are read less often, and the warpgroups hide one another's softmax better.
// With fewer, less is wasted on short sequences, and a small batch spreads over more of the device.
// At head_dim 64 four warpgroups share a multiprocessor, in one team or two; at head_dim 128 the
// registers suffice for three at most.
#include "cuda/attention/attention.h"
#include "cuda/attention/sm90_attention.h"

namespace fusewire::cuda {
namespace {

constexpr int kKeys = 64;

// Returns the number of warpgroups of a team, 64 queries each: as many as the sequences fill, or
// fewer where all items still run at once.
int warpgroups(const AttentionArguments& a) {
  const SequenceBatch& batch = *a.queries;
  const bool small = a.head_dim == 64;
  const int most = small ? 4 : 3;
  int groups = batch.max_seqlen() <= (small ? 128 : 256) ? 2 : most;
  while (groups > 1) {
    const int fewer = groups == 2 ? 1 : 2;
    if (batch.query_tiles(64 * fewer) * a.heads > multiprocessors()) break;
    groups = fewer;
  }
  return groups;
}

}  // namespace

bool sm90_attention_fits(const AttentionArguments& a) {
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  return hopper() && plain_attention(a) && (a.head_dim == 64 || a.head_dim == 128) && a.scale > 0 &&
         sm90::value_column(a) > 0 && aligned(a.q.data, a.q.stride) &&
         aligned(a.k.data, a.k.stride) && aligned(a.v.data, a.v.stride) &&
         aligned(a.out, a.out_stride) && a.queries->query_tiles(64) * a.heads < INT32_MAX / 2;
}

template <class T>
void sm90_attention(const AttentionArguments& a, const Stream& stream) {
  using sm90::AttentionTile;
  const auto run = [&](auto tile) {
    sm90::run_attention<T, decltype(tile)>(a, multiprocessors(), stream);
  };
  const int groups = warpgroups(a);
  if (a.head_dim == 64) {
    if (groups == 1) run(AttentionTile<64, 1, kKeys, 4, 2>{});
    if (groups == 2) run(AttentionTile<64, 2, kKeys, 4, 2, 2>{});
    if (groups == 4) run(AttentionTile<64, 4, kKeys, 4, 2>{});
  } else {
    if (groups == 1) run(AttentionTile<128, 1, kKeys, 4, 2>{});
    if (groups == 2) run(AttentionTile<128, 2, kKeys, 4, 2>{});
    if (groups == 3) run(AttentionTile<128, 3, kKeys, 3, 2>{});
  }
}

template void sm90_attention<__half>(const AttentionArguments&, const Stream&);
template void sm90_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
