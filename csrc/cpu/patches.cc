// Images cut into patches. A task is one row of patches of an image: its rows of pixels are read
// once, for the patches and for the largest magnitude of the image.
#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Returns the bits of |x|, which are ordered as the values are, with NaN above all.
FUSEWIRE_INLINE IntVec magnitude_bits(Vec x) {
  return reinterpret_cast<const IntVec&>(x) & 0x7FFFFFFF;
}

int32_t largest_lane(IntVec v) {
  int32_t top = 0;
  for (int lane = 0; lane < kLanes; ++lane) top = v[lane] > top ? v[lane] : top;
  return top;
}

void zero(float* row, int64_t count) {
  for (int64_t c = 0; c < count; ++c) row[c] = 0.0f;
}

// Writes the patches of row `down` of the image's grid to rows from `out` on. Returns the bits of
// the largest magnitude of its pixels; the last row of patches counts the pixels below it, too.
int32_t cut_row(const PatchArguments& a, const PackedImage& image, int64_t down, float* out) {
  const int64_t across = image.width / a.size, first = down * a.size;
  const bool last = down + 1 == image.height / a.size;
  const int64_t end = last ? image.height : first + a.size;
  const int64_t patch_pixels = a.channels * a.size * a.size;
  for (int64_t patch = 0; patch < across; ++patch) {
    zero(out + patch * a.out_stride + patch_pixels, a.cols - patch_pixels);
  }
  IntVec top = {};
  for (int64_t channel = 0; channel < a.channels; ++channel) {
    for (int64_t y = first; y < end; ++y) {
      const float* row = a.pixels + image.pixel + (channel * image.height + y) * image.width;
      for_columns(image.width, [&](int64_t x, int64_t count) {
        const IntVec bits = magnitude_bits(read(row + x, count));
        top = bits > top ? bits : top;
      });
      if (y - first >= a.size) continue;
      float* to = out + (channel * a.size + y - first) * a.size;
      for (int64_t patch = 0; patch < across; ++patch) {
        for_columns(a.size, [&](int64_t x, int64_t count) {
          write(to + patch * a.out_stride + x, read(row + patch * a.size + x, count), count);
        });
      }
    }
  }
  return largest_lane(top);
}

// Returns the bits of the largest magnitude of an image smaller than a patch, which has no patches.
int32_t largest_of(const PatchArguments& a, const PackedImage& image) {
  IntVec top = {};
  for_columns(a.channels * image.height * image.width, [&](int64_t x, int64_t count) {
    const IntVec bits = magnitude_bits(read(a.pixels + image.pixel + x, count));
    top = bits > top ? bits : top;
  });
  return largest_lane(top);
}

int32_t cut_image(const PatchArguments& a, const PackedImage& image) {
  float* out = static_cast<float*>(a.out) + image.row * a.out_stride;
  for (int64_t row = 0; row < a.leading; ++row) zero(out + row * a.out_stride, a.cols);
  if (patch_count(a, image) == 0) return largest_of(a, image);
  out += a.leading * a.out_stride;
  int32_t tops[kMaxThreads] = {};
  parallel_for(image.height / a.size, 1, [&](int64_t down, int64_t, int worker) {
    float* patches = out + down * (image.width / a.size) * a.out_stride;
    const int32_t top = cut_row(a, image, down, patches);
    if (top > tops[worker]) tops[worker] = top;
  });
  int32_t largest = 0;
  for (const int32_t top : tops) largest = top > largest ? top : largest;
  return largest;
}

}  // namespace

void cut_patches(const PatchArguments& a, const Stream&) {
  for (int64_t i = 0; i < a.image_count; ++i) {
    const PackedImage& image = a.images[i];
    if (!fits(a, image)) {
      fail("cut_patches: images[", i, "]: got row ", image.row, ", pixel ", image.pixel, ", ",
           image.height, " x ", image.width, ", wanted it within ", a.rows, " rows and ",
           a.pixel_count, " pixels");
    }
  }
  for (int64_t i = 0; i < a.image_count; ++i) {
    const int32_t bits = cut_image(a, a.images[i]);
    __builtin_memcpy(a.largest + i, &bits, sizeof(bits));
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
