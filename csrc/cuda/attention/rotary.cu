// Rotary position embedding (RoPE; RoFormer, Su et al. 2021), in place on the q and k of packed
// rows.
#include <type_traits>

#include "cuda/attention/rotate.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

// Rotates the first 2 * half columns of each head. A thread processes one access: kWidth columns of
// the first half of the rotated columns and the columns of the second half that they are rotated
// with. A row of qkv has heads * half / kWidth accesses, those of q followed by those of k. A
// position beyond the tables gives NaN.
template <class T, int kWidth>
__global__ void __launch_bounds__(256)
    rotate(T* qkv, int64_t stride, const int32_t* positions, int64_t angles, const float* cos,
           const float* sin, int64_t tokens, int heads, int head_dim, int half) {
  using P = Pack<T, kWidth>;
  let_next_start();
  const int packs_per_head = half / kWidth;
  const int access = static_cast<int>(tile_access<1>(0));
  const int head = access / packs_per_head, c = access % packs_per_head * kWidth;
  if (head >= heads) return;
  wait_for_inputs();
  for (int64_t token = tile_row(); token < tokens; token += tile_row_step()) {
    const int64_t position = positions[token];
    T* first = qkv + token * stride + head * head_dim + c;
    T* second = first + half;
    P a = *reinterpret_cast<const P*>(first), b = *reinterpret_cast<const P*>(second);
    const bool known = position >= 0 && position < angles;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float cosine = known ? cos[position * half + c + j] : NAN;
      const float sine = known ? sin[position * half + c + j] : NAN;
      const float2 both = rotated(to_float(a.at[j]), to_float(b.at[j]), cosine, sine);
      a.at[j] = from_float<T>(both.x);
      b.at[j] = from_float<T>(both.y);
    }
    *reinterpret_cast<P*>(first) = a;
    *reinterpret_cast<P*>(second) = b;
  }
}

}  // namespace

template <class T>
void rotary(const RotaryArguments& a, const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const int64_t half = a.rotary_dim / 2;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<1>(a.tokens, a.rotated_heads * (half / kWidth));
    launch(rotate<T, kWidth>, tiles.grid, tiles.block, 0, stream, static_cast<T*>(a.qkv), a.stride,
           a.positions, a.angles, a.cos, a.sin, a.tokens, static_cast<int>(a.rotated_heads),
           static_cast<int>(a.head_dim), static_cast<int>(half));
  };
  if (half % n == 0 && a.head_dim % n == 0 && vectors_fit<T>(a.qkv, a.stride)) {
    run(std::integral_constant<int, n>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

#define INSTANTIATE(T) template void rotary<T>(const RotaryArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
