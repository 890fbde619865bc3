// Preloaded into tritonserver: counts the requests that are cancelled, in shared memory.
//
// Triton tells no model that the client of a request has left, and to ask it takes a message to the
// server and back for each request that runs. Here what its endpoints call of tritonserver's C API
// (tritonserver.h) then adds one to a number that models see: they ask when it has changed.
#include "tritonserver/cancellations.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tritonserver/interpose.h"

struct TRITONSERVER_InferenceRequest;
using Error = TRITONSERVER_Error;

extern "C" Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest*);

namespace {

uint64_t* cancelled = nullptr;

}  // namespace

namespace cancellations {

bool count_in(const char* path) {
  if (path == nullptr) return false;
  const int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return false;
  struct stat about = {};
  if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
      posix_fallocate(file, 0, sizeof *cancelled) == 0) {  // or a write would end the process
    void* const memory =
        mmap(nullptr, sizeof *cancelled, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) cancelled = static_cast<uint64_t*>(memory);
  }
  close(file);
  return cancelled != nullptr;
}

}  // namespace cancellations

// Whoever sees the number sees the request cancelled.
EXPORTED Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
  Error* const failed = REAL(TRITONSERVER_InferenceRequestCancel)(request);
  if (cancelled != nullptr) __atomic_add_fetch(cancelled, 1, __ATOMIC_RELEASE);
  return failed;
}
