// What ids choose rows of.
#pragma once

#include <variant>

#include "core/tensor.h"
#include "ops/linear.h"

namespace fusewire {

// A matrix [rows, columns], or an int8 weight whose rows are its outputs: that of a product over
// the vocabulary may be the table of words too (tied embeddings).
using Table = std::variant<const Tensor*, const Linear*>;

}  // namespace fusewire
