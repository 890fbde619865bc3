// The table whose rows are selected by ids.
#pragma once

#include <variant>

#include "core/tensor.h"
#include "ops/linear.h"

namespace fusewire {

// A matrix [rows, columns], or an int8 weight whose rows are its outputs: the weight of the product
// over the vocabulary may also be the token embedding (tied embeddings).
using Table = std::variant<const Tensor*, const Linear*>;

}  // namespace fusewire
