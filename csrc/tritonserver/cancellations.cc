// Preloaded into tritonserver: counts cancelled requests in shared memory.
//
// Triton does not tell a model that the client of a request has left, and asking takes a message to
// the server and back for each running request. Here the function of tritonserver's C API
// (tritonserver.h) that its endpoints call to cancel a request also increments a number in shared
// memory, and models ask only when it has changed.
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
      posix_fallocate(file, 0, sizeof *cancelled) == 0) {  // otherwise a write could end the
                                                           // process
    void* const memory =
        mmap(nullptr, sizeof *cancelled, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) cancelled = static_cast<uint64_t*>(memory);
  }
  close(file);
  return cancelled != nullptr;
}

}  // namespace cancellations

// The request is cancelled before the number grows, so a model that reads the new number sees it as
// cancelled.
EXPORTED Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
  Error* const failed = REAL(TRITONSERVER_InferenceRequestCancel)(request);
  if (cancelled != nullptr) __atomic_add_fetch(cancelled, 1, __ATOMIC_RELEASE);
  return failed;
}
