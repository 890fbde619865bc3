// The memory in which cuBLASLt keeps the parts of sums that it splits.
#pragma once

#include "core/stream.h"

namespace fusewire::cuda::cublaslt {

// kWorkspaceBytes. A stream's work is serial, so its products share one block. It is kept for ever,
// for graphs hold its address: as many blocks as there ever were streams at one time. A handle that
// comes back with a new stream finds the block idle, because a stream is synchronised before it is
// destroyed.
void* workspace_of(const Stream& stream);

}  // namespace fusewire::cuda::cublaslt
