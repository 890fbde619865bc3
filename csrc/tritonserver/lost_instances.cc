// Preloaded into tritonserver: ends the requests of a model instance whose process has died.
//
// Triton lets their clients wait for ever: responses come from the instance's process (the stub of
// the Python backend), which sends no final one any more. Requests that were queued for it are
// refused, but each only after a second. Here
// - requests that the process had taken get a final response, an error;
// - later requests to the model are refused at once, until it is loaded again; if it has other
//   instances, those take them, and the dead one gets few because it is slow to refuse;
// - both errors are UNAVAILABLE, so that clients know that they may try again.
//
// This file intercepts and forwards the calls of the Python backend to tritonserver's C API for
// backends (tritonbackend.h). The backend calls, in this order: when an instance is loaded,
// ModelInstanceSetState and fork, in one thread; for an execution, ModelInstanceState,
// ResponseFactoryNew for each request, ResponseNew and ResponseSend for requests that are answered
// at once, and RequestRelease, in one thread; later, in other threads, ResponseNewFromFactory and
// ResponseSend, or ResponseFactorySendFlags, and finally ResponseFactoryDelete.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

#include "tritonserver/interpose.h"
#include "tritonserver/stopping.h"

struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_ResponseFactory;

extern "C" {
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance*,
                                                     TRITONBACKEND_Model**);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance*, void*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance*, void**);
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request*, uint32_t);
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response**, TRITONBACKEND_Request*);
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response*, uint32_t,
                                               TRITONSERVER_Error*);
TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory**,
                                                     TRITONBACKEND_Request*);
TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory*);
TRITONSERVER_Error* TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory*,
                                                           uint32_t);
TRITONSERVER_Error* TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response**,
                                                         TRITONBACKEND_ResponseFactory*);
}

namespace {

using Instance = TRITONBACKEND_ModelInstance;
using Request = TRITONBACKEND_Request;
using Response = TRITONBACKEND_Response;
using Factory = TRITONBACKEND_ResponseFactory;
using Error = TRITONSERVER_Error;

constexpr uint32_t final_response = 1;  // TRITONSERVER_RESPONSE_COMPLETE_FINAL
constexpr int64_t look_every_ms = 100;
// Responses that the process sent before its end may still be on their way to clients.
constexpr int64_t settle_ms = 300;

struct Process {
  TRITONBACKEND_Model* model = nullptr;
  pid_t pid = 0;           // 0: not started yet
  int64_t lost_at_ms = 0;  // 0: it lives
};

// An open request: its final response has not been sent.
struct Open {
  Instance* instance;
  bool executing;  // false: only the instance's process can answer it
};

std::mutex mutex;  // guards these three, which are never destroyed because threads outlive main()
auto& processes = *new std::map<Instance*, Process>;
auto& open_requests = *new std::map<Factory*, Open>;
auto& responses = *new std::map<Response*, Factory*>;

thread_local Instance* loading = nullptr;
thread_local Instance* executing = nullptr;
thread_local std::map<Request*, Factory*> executed;

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

Error* unavailable() {
  if (stopping::is_closed()) return stopping::error();  // its supervisor ended it
  return REAL(TRITONSERVER_ErrorNew)(
      TRITONSERVER_ERROR_UNAVAILABLE,
      "instance: got a request whose process is not healthy, wanted one that lives; the process is "
      "being replaced, try again");
}

void free_error(Error* error) {
  REAL(TRITONSERVER_ErrorDelete)(error);
}

// Returns whether the process has died. Call it with the mutex held.
bool lost(Process& process) {
  if (process.lost_at_ms == 0 && process.pid != 0) {
    siginfo_t ended = {};
    const int failed = waitid(P_PID, process.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    if (failed || ended.si_pid == process.pid) process.lost_at_ms = now_ms();
  }
  return process.lost_at_ms != 0;
}

bool lost(Instance* instance) {
  const auto found = processes.find(instance);
  return found != processes.end() && lost(found->second);
}

// Returns whether the process is stopped (SIGSTOP). For such an instance the backend reports after
// a second, as an internal error, that it is not healthy.
bool stopped(Instance* instance) {
  const auto found = processes.find(instance);
  siginfo_t seen = {};
  return found != processes.end() && found->second.pid != 0 &&
         waitid(P_PID, found->second.pid, &seen, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         seen.si_pid == found->second.pid;
}

bool was_the_last(Instance* instance) {
  for (auto& [other, process] : processes) {
    if (process.model == processes[instance].model && process.pid != 0 && !lost(process)) {
      return false;
    }
  }
  return true;
}

// Removes and returns the open requests of processes that died a while ago, which only this thread
// will answer.
std::vector<Factory*> take_orphans() {
  std::vector<Factory*> orphans;
  const std::lock_guard<std::mutex> guard(mutex);
  for (auto& [instance, process] : processes) lost(process);
  for (auto each = open_requests.begin(); each != open_requests.end();) {
    const int64_t at_ms = processes[each->second.instance].lost_at_ms;
    if (at_ms != 0 && now_ms() - at_ms >= settle_ms && !each->second.executing) {
      orphans.push_back(each->first);
      each = open_requests.erase(each);
    } else {
      ++each;
    }
  }
  return orphans;
}

// Answers orphaned requests, in a thread of its own. It keeps the factories: with the last of them
// the server would unload the instance, which cannot end without its process.
void* answer_orphans(void*) {
  for (;;) {
    usleep(look_every_ms * 1000);
    for (Factory* factory : take_orphans()) {
      Response* response = nullptr;
      if (Error* failed = REAL(TRITONBACKEND_ResponseNewFromFactory)(&response, factory)) {
        free_error(failed);
        continue;
      }
      Error* const error = unavailable();
      if (Error* failed = REAL(TRITONBACKEND_ResponseSend)(response, final_response, error)) {
        free_error(failed);
      }
      free_error(error);
    }
  }
}

void start_answering() {
  sigset_t all, usual;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &usual);  // signals are for tritonserver's own threads
  pthread_t thread;
  if (pthread_create(&thread, nullptr, answer_orphans, nullptr)) abort();
  pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &usual, nullptr);
}

}  // namespace

EXPORTED Error* TRITONBACKEND_ModelInstanceSetState(Instance* instance, void* state) {
  Process process;
  if (Error* error = REAL(TRITONBACKEND_ModelInstanceModel)(instance, &process.model)) {
    return error;
  }
  {
    const std::lock_guard<std::mutex> guard(mutex);
    processes[instance] = process;
  }
  loading = instance;
  return REAL(TRITONBACKEND_ModelInstanceSetState)(instance, state);
}

EXPORTED pid_t fork() {
  const pid_t child = REAL(fork)();
  if (child > 0 && loading != nullptr) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_answering);
    const std::lock_guard<std::mutex> guard(mutex);
    processes[loading].pid = child;
    loading = nullptr;
  }
  return child;
}

EXPORTED Error* TRITONBACKEND_ModelInstanceState(Instance* instance, void** state) {
  executing = instance;
  executed.clear();
  return REAL(TRITONBACKEND_ModelInstanceState)(instance, state);
}

EXPORTED Error* TRITONBACKEND_ResponseFactoryNew(Factory** factory, Request* request) {
  const std::lock_guard<std::mutex> guard(mutex);
  if (lost(executing) && was_the_last(executing)) return unavailable();
  Error* const error = REAL(TRITONBACKEND_ResponseFactoryNew)(factory, request);
  if (error == nullptr && processes.count(executing)) {
    open_requests[*factory] = {executing, true};
    executed[request] = *factory;
  }
  return error;
}

// Called when the execution itself answers the request.
EXPORTED Error* TRITONBACKEND_ResponseNew(Response** response, Request* request) {
  if (const auto found = executed.find(request); found != executed.end()) {
    const std::lock_guard<std::mutex> guard(mutex);
    open_requests.erase(found->second);
    executed.erase(found);
  }
  return REAL(TRITONBACKEND_ResponseNew)(response, request);
}

EXPORTED Error* TRITONBACKEND_RequestRelease(Request* request, uint32_t flags) {
  if (const auto found = executed.find(request); found != executed.end()) {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto open = open_requests.find(found->second);
    if (open != open_requests.end()) open->second.executing = false;
    executed.erase(found);
  }
  return REAL(TRITONBACKEND_RequestRelease)(request, flags);
}

EXPORTED Error* TRITONBACKEND_ResponseNewFromFactory(Response** response, Factory* factory) {
  Error* const error = REAL(TRITONBACKEND_ResponseNewFromFactory)(response, factory);
  if (error == nullptr) {
    const std::lock_guard<std::mutex> guard(mutex);
    if (open_requests.count(factory)) responses[*response] = factory;
  }
  return error;
}

EXPORTED Error* TRITONBACKEND_ResponseSend(Response* response, uint32_t flags, Error* error) {
  bool died = false;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    if (const auto found = responses.find(response); found != responses.end()) {
      if (flags & final_response) open_requests.erase(found->second);
      responses.erase(found);
    }
    died = error != nullptr && (lost(executing) || stopped(executing));
  }
  if (!died) return REAL(TRITONBACKEND_ResponseSend)(response, flags, error);
  Error* const ours = unavailable();
  Error* const failed = REAL(TRITONBACKEND_ResponseSend)(response, flags, ours);
  free_error(ours);
  return failed;
}

EXPORTED Error* TRITONBACKEND_ResponseFactorySendFlags(Factory* factory, uint32_t flags) {
  if (flags & final_response) {
    const std::lock_guard<std::mutex> guard(mutex);
    open_requests.erase(factory);
  }
  return REAL(TRITONBACKEND_ResponseFactorySendFlags)(factory, flags);
}

EXPORTED Error* TRITONBACKEND_ResponseFactoryDelete(Factory* factory) {
  {
    const std::lock_guard<std::mutex> guard(mutex);
    open_requests.erase(factory);
  }
  return REAL(TRITONBACKEND_ResponseFactoryDelete)(factory);
}
