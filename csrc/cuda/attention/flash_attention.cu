// Chooses the tile sizes of attention on tensor cores by head_dim, padded with zeros to the next
// compiled one, and the longest sequence.
#include "cuda/attention/flash_kernel.h"

namespace fusewire::cuda {
namespace {

// Template parameters: head_dim, warps, tiles of 16 rows per warp, keys per step, blocks per
// multiprocessor.
template <class T, int kDim, int kWarps, int kRowTiles, int kKeys, int kBlocks>
using Once = FlashTile<T, kDim, kWarps, kRowTiles, kKeys, kBlocks, FlashMode::kOnce>;
template <class T, int kDim, int kWarps, int kRowTiles, int kKeys, int kBlocks>
using Plain = FlashTile<T, kDim, kWarps, kRowTiles, kKeys, kBlocks, FlashMode::kPlain>;
template <class T, int kDim, int kWarps, int kRowTiles, int kKeys, int kBlocks>
using Saving = FlashTile<T, kDim, kWarps, kRowTiles, kKeys, kBlocks, FlashMode::kSaving>;

// Launches the forward pass of training for head_dim 64 or 128.
template <class T>
void launch_saving(const AttentionArguments& a, const Stream& stream) {
  const int64_t longest = a.queries->max_seqlen();
  if (a.head_dim == 64) {
    if (longest <= 128) return launch_flash<Saving<T, 64, 4, 1, 64, 4>>(a, true, stream);
    return launch_flash<Saving<T, 64, 2, 2, 64, 4>>(a, true, stream);
  }
  if (longest <= 512) return launch_flash<Saving<T, 128, 4, 1, 32, 3>>(a, true, stream);
  launch_flash<Saving<T, 128, 4, 2, 32, 2>>(a, true, stream);
}

// Launches the kernel of kMode, kGeneral or kDropping.
template <class T, FlashMode kMode>
void launch_general(const AttentionArguments& a, bool vectors, const Stream& stream) {
  const int64_t dim = a.head_dim;
  if (dim <= 32) return launch_flash<FlashTile<T, 32, 4, 1, 64, 4, kMode>>(a, vectors, stream);
  if (dim <= 64) return launch_flash<FlashTile<T, 64, 4, 1, 64, 4, kMode>>(a, vectors, stream);
  if (dim <= 96) return launch_flash<FlashTile<T, 96, 4, 1, 64, 3, kMode>>(a, vectors, stream);
  if (dim <= 128) return launch_flash<FlashTile<T, 128, 4, 1, 64, 2, kMode>>(a, vectors, stream);
  launch_flash<FlashTile<T, 256, 4, 1, 32, 2, kMode>>(a, vectors, stream);
}

}  // namespace

template <class T>
void flash_attention(const AttentionArguments& a, const Stream& stream) {
  const bool vectors = attention_vectors_fit<T>(a);
  const bool aligned = vectors && a.scale * kLog2E > kLeastFactor;
  const bool plain = aligned && plain_attention(a);
  const int64_t longest = a.queries->max_seqlen();
  // These choices were measured on an H200 with 12 heads of 64 and 16 heads of 128, 5000 and 16000
  // tokens.
  if (plain && a.head_dim == 64) {
    if (longest <= 32) return launch_flash<Once<T, 64, 2, 1, 32, 15>>(a, vectors, stream);
    if (longest <= 64) return launch_flash<Once<T, 64, 4, 1, 64, 6>>(a, vectors, stream);
    if (longest <= 128) return launch_flash<Plain<T, 64, 4, 1, 64, 4>>(a, vectors, stream);
    return launch_flash<Plain<T, 64, 2, 2, 64, 4>>(a, vectors, stream);
  }
  if (plain && a.head_dim == 128) {
    if (longest <= 32) return launch_flash<Once<T, 128, 2, 1, 32, 10>>(a, vectors, stream);
    if (longest <= 64) return launch_flash<Once<T, 128, 4, 1, 64, 4>>(a, vectors, stream);
    if (longest <= 512) return launch_flash<Plain<T, 128, 4, 1, 32, 3>>(a, vectors, stream);
    return launch_flash<Plain<T, 128, 4, 2, 32, 2>>(a, vectors, stream);
  }
  if (plain && a.head_dim == 32) return launch_flash<Plain<T, 32, 4, 1, 64, 5>>(a, vectors, stream);
  if (plain && a.head_dim == 80) return launch_flash<Plain<T, 80, 4, 1, 64, 3>>(a, vectors, stream);
  if (plain && a.head_dim == 96) return launch_flash<Plain<T, 96, 4, 1, 64, 3>>(a, vectors, stream);
  if (aligned && plain_weights(a) && (a.head_dim == 64 || a.head_dim == 128)) {
    return launch_saving<T>(a, stream);
  }
  if (a.dropout.probability > 0) {
    return launch_general<T, FlashMode::kDropping>(a, vectors, stream);
  }
  launch_general<T, FlashMode::kGeneral>(a, vectors, stream);
}

template void flash_attention<__half>(const AttentionArguments&, const Stream&);
template void flash_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
