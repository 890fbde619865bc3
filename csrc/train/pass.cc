#include "train/pass.h"

#include "core/error.h"

namespace fusewire::train {

Tensor Parameter::of(const Tensor& flat) const {
  char* begin = flat.data ? flat.as<char>() + offset * size_of(flat.dtype) : nullptr;
  return {begin, shape, flat.dtype, flat.device, flat.owner};
}

void expect_within(const Parameter& parameter, const Tensor& flat) {
  const int64_t numbers = parameter.shape.elements();
  if (parameter.offset < 0 || numbers > flat.shape[0] ||
      parameter.offset > flat.shape[0] - numbers) {
    fail("parameters: got ", name_of(flat.dtype), flat.shape.text(), ", wanted room for ",
         parameter.shape.text(), " at ", parameter.offset,
         "; pass the buffer that the stack was made for");
  }
}

Recompute recompute_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"none", "norm", "activation", "layer"};
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) return static_cast<Recompute>(i);
  }
  fail("recompute: got '", name, "', wanted none, norm, activation or layer");
}

}  // namespace fusewire::train
