#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void cut_patches(const Tensor& out, const Tensor& largest, const Tensor& pixels,
                 const Tensor& images, int64_t channels, int64_t size, int64_t leading,
                 const Stream& stream) {
  Check check("cut_patches", stream);
  Dim rows("rows"), cols("cols"), count("images"), fields("fields", 4), all("n");
  check.floats("out", out, {&rows, &cols});
  check.is("images", images, DType::kInt64, {&count, &fields});
  check.is("largest", largest, DType::kFloat32, {&count});
  check.is("pixels", pixels, DType::kFloat32, {&all});
  check.contiguous("images", images);
  check.require(channels > 0 && size > 0 && leading >= 0, "channels, size, leading: got ", channels,
                ", ", size, ", ", leading, ", wanted 1 or more, 1 or more, 0 or more");
  check.require(cols.size / channels / size >= size, "out: got ", cols.size,
                " columns, wanted one for each of the ", channels, " x ", size, " x ", size,
                " pixels of a patch");
  const PatchArguments a = {out.data,
                            out.row_stride,
                            rows.size,
                            cols.size,
                            largest.as<float>(),
                            pixels.as<float>(),
                            all.size,
                            images.as<PackedImage>(),
                            count.size,
                            channels,
                            size,
                            leading};
  dispatch(check, stream, count.size,
           [&](const Kernels& kernels) { kernels.cut_patches(a, stream); });
}

}  // namespace fusewire::ops
