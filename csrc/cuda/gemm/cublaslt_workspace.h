// The memory in which cuBLASLt keeps partial sums of split-K products.
#pragma once

#include "core/stream.h"

namespace fusewire::cuda::cublaslt {

// Returns kWorkspaceBytes of memory. The work of a stream is serial, so its products share one
// block. Blocks are never freed, because graphs contain their addresses: there are as many as there
// were streams at one time. A new stream that reuses a handle finds the block idle, because a
// stream is synchronised before it is destroyed.
void* workspace_of(const Stream& stream);

}  // namespace fusewire::cuda::cublaslt
