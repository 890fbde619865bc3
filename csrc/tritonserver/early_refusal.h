// Requests that are refused before they are in Triton's queue.
#pragma once

struct TRITONSERVER_Error;
struct TRITONSERVER_InferenceRequest;

namespace early_refusal {

// How the paths of the blocks begin; nullptr: there are none.
void watch(const char* prefix);

// The error of a request that its model would refuse now for lack of time; nullptr: it may come in.
TRITONSERVER_Error* error(TRITONSERVER_InferenceRequest* request);

}  // namespace early_refusal
