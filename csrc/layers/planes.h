// The keys and values of one attention in the KV cache of a whole stack.
#pragma once

#include "core/tensor.h"

namespace fusewire::layers {

// [pages, kv_heads, page_size, head_dim] each.
struct KeyValuePlanes {
  Tensor keys, values;
};

// Returns the planes of attention `index`: planes 2 index and 2 index + 1 of [planes, pages,
// elements of a page]. `page` is [kv_heads, page_size, head_dim]. Throws Error if the cache has no
// such planes, or pages of another size.
KeyValuePlanes planes_of(const char* attention, const Tensor& planes, int64_t index,
                         const Shape& page);

}  // namespace fusewire::layers
