// The caching allocator for torch: the functions that torch.cuda.memory.CUDAPluggableAllocator
// looks up by name in the compiled module, and those for the hooks of its object
// (backend/fusewire/torch_memory.py). torch's memory has the tag "torch".
//
// A CUDA graph that torch captured is replayed in the same memory for as long as it lives. So
// blocks that were allocated during a capture go to a pool of that graph when torch frees them,
// serve later requests of the same pool, and return to the allocator when torch releases the pool.
#pragma once

#include <sys/types.h>

#include <functional>
#include <utility>

struct CUstream_st;  // cudaStream_t points to it

// The value of a torch::MempoolId_t.
using FusewireTorchPoolId = std::pair<unsigned long long, unsigned long long>;

#define FUSEWIRE_EXPORT __attribute__((visibility("default")))

extern "C" {

// Throws fusewire::Error, which torch raises as a RuntimeError: it would take null for memory.
FUSEWIRE_EXPORT void* fusewire_torch_malloc(ssize_t size, int device, CUstream_st* stream);
FUSEWIRE_EXPORT void fusewire_torch_free(void* data, ssize_t size, int device, CUstream_st* stream);

// For Tensor.record_stream and torch.cuda.empty_cache.
FUSEWIRE_EXPORT void fusewire_torch_record_stream(void* data, CUstream_st* stream);
FUSEWIRE_EXPORT void fusewire_torch_empty_cache();

// Between begin and end, allocations on streams that `accepts` returns true for belong to the pool.
FUSEWIRE_EXPORT void fusewire_torch_begin_pool(int device, FusewireTorchPoolId id,
                                               std::function<bool(CUstream_st*)> accepts);
FUSEWIRE_EXPORT void fusewire_torch_end_pool(int device, FusewireTorchPoolId id);
FUSEWIRE_EXPORT void fusewire_torch_release_pool(int device, FusewireTorchPoolId id);
}
