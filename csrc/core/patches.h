// The arguments of cut_patches (ops.def), for every target.
#pragma once

#include <cstdint>

namespace fusewire {

// Offset of an image [channels, height, width] in `pixels`, and the row of `out` where it begins.
struct PackedImage {
  int64_t row, pixel, height, width;
};

struct PatchArguments {
  void* out;
  int64_t out_stride, rows, cols;
  float* largest;
  const float* pixels;
  int64_t pixel_count;
  const PackedImage* images;
  int64_t image_count;
  int64_t channels, size, leading;
};

// Static, so that code compiled for one instruction set never serves the others (cpu/vec.h).
static constexpr int64_t patch_count(const PatchArguments& a, const PackedImage& image) {
  return (image.height / a.size) * (image.width / a.size);
}

// Returns whether the image's pixels and rows are within bounds. Each check bounds the products of
// the next, so none overflows.
static constexpr bool fits(const PatchArguments& a, const PackedImage& image) {
  const bool known = image.height > 0 && image.width > 0 && image.pixel >= 0 &&
                     image.pixel <= a.pixel_count && image.row >= 0 && image.row <= a.rows;
  return known && image.height <= (a.pixel_count - image.pixel) / a.channels / image.width &&
         a.leading + patch_count(a, image) <= a.rows - image.row;
}

}  // namespace fusewire
