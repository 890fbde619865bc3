// Chooses the tile of the tensor-core attention: by the width of a head (padded with zeros to the
// next compiled one) and the longest sequence.
#include "cuda/attention/flash_kernel.h"

namespace fusewire::cuda {
namespace {

// Width; warps, 16-row tiles each, keys a step; blocks a multiprocessor.
template <class T, int kDim, int kWarps, int kRowTiles, int kKeys, int kBlocks>
using Once = FlashTile<T, kDim, kWarps, kRowTiles, kKeys, kBlocks, FlashMode::kOnce>;
template <class T, int kDim, int kWarps, int kRowTiles, int kKeys, int kBlocks>
using Plain = FlashTile<T, kDim, kWarps, kRowTiles, kKeys, kBlocks, FlashMode::kPlain>;
template <class T, int kDim, int kKeys, int kBlocks>
using General = FlashTile<T, kDim, 4, 1, kKeys, kBlocks, FlashMode::kGeneral>;

template <class T>
void launch_general(const AttentionArguments& a, bool vectors, const Stream& stream) {
  if (a.head_dim <= 32) return launch_flash<General<T, 32, 64, 4>>(a, vectors, stream);
  if (a.head_dim <= 64) return launch_flash<General<T, 64, 64, 4>>(a, vectors, stream);
  if (a.head_dim <= 96) return launch_flash<General<T, 96, 64, 3>>(a, vectors, stream);
  if (a.head_dim <= 128) return launch_flash<General<T, 128, 64, 2>>(a, vectors, stream);
  launch_flash<General<T, 256, 32, 2>>(a, vectors, stream);
}

}  // namespace

template <class T>
void flash_attention(const AttentionArguments& a, const Stream& stream) {
  const bool vectors = attention_vectors_fit<T>(a);
  const bool plain = vectors && plain_attention(a) && a.scale * kLog2E > kLeastFactor;
  const int64_t longest = a.queries->max_seqlen();
  // Measured on an H200, 12 heads of 64 and 16 of 128, 5000 and 16000 tokens.
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
  launch_general<T>(a, vectors, stream);
}

template void flash_attention<__half>(const AttentionArguments&, const Stream&);
template void flash_attention<__nv_bfloat16>(const AttentionArguments&, const Stream&);

}  // namespace fusewire::cuda
