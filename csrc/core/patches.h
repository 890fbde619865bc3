// The arguments of cut_patches (ops.def), for every target.
#pragma once

#include <cstdint>

namespace fusewire {

// Where an image [channels, height, width] lies among the pixels, and where its rows begin.
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

// Static, so that no instruction set's copies serve the others (cpu/vec.h).
static constexpr int64_t patch_count(const PatchArguments& a, const PackedImage& image) {
  return (image.height / a.size) * (image.width / a.size);
}

// Whether its pixels and its rows are there; no product of what is checked first overflows.
static constexpr bool fits(const PatchArguments& a, const PackedImage& image) {
  const bool known = image.height > 0 && image.width > 0 && image.pixel >= 0 &&
                     image.pixel <= a.pixel_count && image.row >= 0 && image.row <= a.rows;
  return known && image.height <= (a.pixel_count - image.pixel) / a.channels / image.width &&
         a.leading + patch_count(a, image) <= a.rows - image.row;
}

}  // namespace fusewire
