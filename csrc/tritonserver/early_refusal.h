// Refuses requests before they enter Triton's queue.
#pragma once

struct TRITONSERVER_Error;
struct TRITONSERVER_InferenceRequest;

namespace early_refusal {

// Starts to judge requests by the blocks whose paths begin with `prefix`; nullptr: there are none.
void watch(const char* prefix);

// Returns the error for a request that its model would refuse now for lack of time; nullptr: the
// request is accepted.
TRITONSERVER_Error* error(TRITONSERVER_InferenceRequest* request);

}  // namespace early_refusal
