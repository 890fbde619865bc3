// Preloaded into tritonserver: while it stops, it is not ready and takes no more requests.
//
// Triton itself refuses new connections from its SIGTERM on, but goes on calling itself ready and
// taking requests over the connections that there are, until none is open. Here what its HTTP and
// gRPC endpoints call of tritonserver's C API (tritonserver.h) answers for it. Models may go on
// asking other models: a request that was taken may need that.
#include "tritonserver/stopping.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include <atomic>

#include "tritonserver/interpose.h"

struct TRITONSERVER_InferenceRequest;
struct TRITONSERVER_InferenceTrace;
struct TRITONSERVER_Server;
using Error = TRITONSERVER_Error;

extern "C" {
Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server*, bool*);
Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server*, const char*, int64_t, bool*);
Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server*, TRITONSERVER_InferenceRequest*,
                                     TRITONSERVER_InferenceTrace*);
}

namespace {

std::atomic<pid_t> stage{0};

// Whether the code at an address is the program's, in which the endpoints are, and no backend's.
bool of_the_program(const void* address) {
  Dl_info found = {};
  if (!dladdr(address, &found) || found.dli_fname == nullptr) return false;
  const char* name = strrchr(found.dli_fname, '/');
  return strcmp(name == nullptr ? found.dli_fname : name + 1, "tritonserver") == 0;
}

}  // namespace

namespace stopping {

void begin(pid_t to) {
  stage = to;
}

bool is_closed() {
  return stage == closed;
}

Error* error() {
  return REAL(TRITONSERVER_ErrorNew)(
      TRITONSERVER_ERROR_UNAVAILABLE,
      "server: got a request while it stops, wanted one before; send it to another server");
}

}  // namespace stopping

EXPORTED Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server* server, bool* ready) {
  Error* const failed = REAL(TRITONSERVER_ServerIsReady)(server, ready);
  if (failed == nullptr && stage != 0) *ready = false;
  return failed;
}

EXPORTED Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server* server, const char* model,
                                                int64_t version, bool* ready) {
  Error* const failed = REAL(TRITONSERVER_ServerModelIsReady)(server, model, version, ready);
  if (failed == nullptr && stage != 0) *ready = false;
  return failed;
}

EXPORTED Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server* server,
                                              TRITONSERVER_InferenceRequest* request,
                                              TRITONSERVER_InferenceTrace* trace) {
  if (stopping::is_closed() && of_the_program(__builtin_return_address(0))) {
    return stopping::error();
  }
  return REAL(TRITONSERVER_ServerInferAsync)(server, request, trace);
}
