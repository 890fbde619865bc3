#include "layers/planes.h"

#include "core/error.h"

namespace fusewire::layers {

KeyValuePlanes planes_of(const char* attention, const Tensor& planes, int64_t index,
                         const Shape& page) {
  const int64_t keys = 2 * index;
  if (planes.shape.rank() != 3 || planes.shape[0] < keys + 2 ||
      planes.shape[2] != page.elements() || !planes.contiguous()) {
    fail(attention, ": planes: got ", planes.shape.text(), ", wanted at least ", keys + 2,
         " planes [pages, ", page.elements(), "], dense");
  }
  const auto plane = [&](int64_t at) {
    char* data = planes.as<char>() + at * (planes.bytes() / planes.shape[0]);
    return Tensor(data, {planes.shape[1], page[0], page[1], page[2]}, planes.dtype, planes.device);
  };
  return {plane(keys), plane(keys + 1)};
}

}  // namespace fusewire::layers
