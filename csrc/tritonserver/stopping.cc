// Preloaded into tritonserver: while it stops, it is not ready and accepts no more requests.
//
// Triton itself refuses new connections after SIGTERM, but still reports that it is ready and
// accepts requests over existing connections, until none is open. Here the functions of
// tritonserver's C API (tritonserver.h) that its HTTP and gRPC endpoints call answer accordingly.
// Models may still call other models: a request that was accepted may need that.
#include "tritonserver/stopping.h"

#include <link.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>

#include "tritonserver/early_refusal.h"
#include "tritonserver/interpose.h"

struct TRITONSERVER_InferenceRequest;
struct TRITONSERVER_InferenceTrace;
struct TRITONSERVER_Server;
using Error = TRITONSERVER_Error;

extern "C" {
Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server*, bool*);
Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server*, const char*, int64_t, bool*);
Error* TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server*, const char*, int64_t,
                                                     uint32_t*, void**);
Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server*, TRITONSERVER_InferenceRequest*,
                                     TRITONSERVER_InferenceTrace*);
}

namespace {

std::atomic<pid_t> stage{0};

// The address range of the program, which contains the endpoints and no backend: it is the first
// object that is loaded.
struct Program {
  uintptr_t begin = UINTPTR_MAX, end = 0;

  Program() {
    dl_iterate_phdr(
        [](dl_phdr_info* object, size_t, void* program) {
          auto& found = *static_cast<Program*>(program);
          for (int i = 0; i < object->dlpi_phnum; ++i) {
            const auto& part = object->dlpi_phdr[i];
            if (part.p_type != PT_LOAD) continue;
            const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
            found.begin = std::min(found.begin, begin);
            found.end = std::max<uintptr_t>(found.end, begin + part.p_memsz);
          }
          return 1;
        },
        this);
  }
};

bool of_the_program(const void* address) {
  static const Program program;
  const auto at = reinterpret_cast<uintptr_t>(address);
  return program.begin <= at && at < program.end;
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

// The first question of the endpoints about a request's model. Once the model is unloaded, the
// answer would be that there is no such model.
EXPORTED Error* TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server* server,
                                                              const char* model, int64_t version,
                                                              uint32_t* flags, void** more) {
  if (stopping::is_closed() && of_the_program(__builtin_return_address(0))) {
    return stopping::error();
  }
  return REAL(TRITONSERVER_ServerModelTransactionProperties)(server, model, version, flags, more);
}

EXPORTED Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server* server,
                                              TRITONSERVER_InferenceRequest* request,
                                              TRITONSERVER_InferenceTrace* trace) {
  if (of_the_program(__builtin_return_address(0))) {
    if (stopping::is_closed()) return stopping::error();
    if (Error* const refused = early_refusal::error(request)) return refused;
  }
  return REAL(TRITONSERVER_ServerInferAsync)(server, request, trace);
}
