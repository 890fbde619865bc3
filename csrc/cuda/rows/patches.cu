// Cuts images into patches, and finds the largest magnitude of each image.
#include <algorithm>
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {
namespace {

constexpr int kCutBlock = 256, kCutWarps = kCutBlock / kWarp;

// Raises `largest` to the largest |x| of this block's share of the image. The bits of magnitudes
// have the order of the magnitudes, with NaN above all.
__device__ __forceinline__ void raise_to_largest(float* largest, const float* pixels,
                                                 int64_t count) {
  unsigned top = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.x * kCutBlock + threadIdx.x; i < count; i += gridDim.x * kCutBlock) {
    top = max(top, __float_as_uint(pixels[i]) & 0x7FFFFFFFu);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    top = max(top, __shfl_xor_sync(kWholeWarp, top, distance));
  }
  if (threadIdx.x % kWarp == 0) atomicMax(reinterpret_cast<unsigned*>(largest), top);
}

// Iterates over the pixels of a patch in the order of its columns.
struct PatchPixel {
  int channel, y, x;

  __device__ __forceinline__ PatchPixel(int column, int size)
      : channel(column / (size * size)), y(column / size % size), x(column % size) {}
  __device__ __forceinline__ void step(int size) {
    if (++x < size) return;
    x = 0;
    if (++y < size) return;
    y = 0;
    ++channel;
  }
};

// A warp writes a row of out: neighbouring columns, whose pixels are neighbours too.
template <class T, int kWidth>
__device__ __forceinline__ void cut_row(const PatchArguments& a, const PackedImage& image,
                                        int64_t row) {
  const int size = static_cast<int>(a.size), cols = static_cast<int>(a.cols);
  const int64_t across = max(image.width / a.size, int64_t{1}), patch = row - a.leading;
  const int channels = patch < 0 ? 0 : static_cast<int>(a.channels);  // leading rows are zeros
  const int64_t down = patch / across * a.size, right = patch % across * a.size;
  const float* corner = a.pixels + image.pixel + down * image.width + right;
  T* out = static_cast<T*>(a.out) + (image.row + row) * a.out_stride;
  for (int c = threadIdx.x % kWarp * kWidth; c < cols; c += kWarp * kWidth) {
    PatchPixel at(c, size);
    Pack<T, kWidth> pack;
#pragma unroll
    for (int j = 0; j < kWidth; ++j, at.step(size)) {
      const bool inside = at.channel < channels;
      const int64_t pixel = (at.channel * image.height + at.y) * image.width + at.x;
      pack.at[j] = from_float<T>(inside ? corner[pixel] : 0.0f);
    }
    *reinterpret_cast<Pack<T, kWidth>*>(out + c) = pack;
  }
}

// Grid: blocks along x share an image, blocks along y have different images. Pixels are read a
// second time for their largest magnitude, in memory order: those beyond whole patches count too.
template <class T, int kWidth>
__global__ void __launch_bounds__(kCutBlock) cut_images(PatchArguments a) {
  let_next_start();
  wait_for_inputs();
  for (int64_t i = blockIdx.y; i < a.image_count; i += gridDim.y) {
    const PackedImage image = a.images[i];
    if (!fits(a, image)) {
      if (blockIdx.x == 0 && threadIdx.x == 0) a.largest[i] = NAN;
      continue;
    }
    raise_to_largest(a.largest + i, a.pixels + image.pixel,
                     a.channels * image.height * image.width);
    const int64_t rows = a.leading + patch_count(a, image);
    const int64_t first = blockIdx.x * kCutWarps + threadIdx.x / kWarp;
    for (int64_t row = first; row < rows; row += gridDim.x * kCutWarps) {
      cut_row<T, kWidth>(a, image, row);
    }
  }
}

}  // namespace

template <class T>
void cut_patches(const PatchArguments& a, const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  constexpr int64_t kMostImageBlocks = 65535;  // limit of grid.y; a block loops over further images
  check(cudaMemsetAsync(a.largest, 0, a.image_count * sizeof(float), handle(stream)), "largest");
  // As many blocks as the rows of an image of mean size need.
  const int64_t rows = (a.rows + a.image_count - 1) / a.image_count;
  const dim3 grid(static_cast<unsigned>(std::max<int64_t>((rows + kCutWarps - 1) / kCutWarps, 1)),
                  static_cast<unsigned>(std::min(a.image_count, kMostImageBlocks)));
  const bool vectors = a.cols % n == 0 && vectors_fit<T>(a.out, a.out_stride);
  launch(vectors ? cut_images<T, n> : cut_images<T, 1>, grid, kCutBlock, 0, stream, a);
}

#define INSTANTIATE(T) template void cut_patches<T>(const PatchArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
