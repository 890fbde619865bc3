// Preloaded into tritonserver (serving/supervisor/launch.py), for what only code inside its process
// can do.
//
// - Secret arguments: every user of the machine can read argv (/proc/PID/cmdline), but only this
//   user the environment. An argument --FLAG=$FUSEWIRE_RESTRICTED_APIS is replaced by that
//   variable's value before main() runs, in memory that /proc does not show. If this object is not
//   loaded, tritonserver refuses the placeholder and exits.
// - Dead children: only a parent can reap a process, and tritonserver reaps none that was killed.
//   The supervisor writes their process ids to standard input. tritonserver may kill them again
//   much later, when another process has the id, so kill is limited to its own process group.
// - The end of the server: the supervisor announces it in the same way, and requests are refused
//   (stopping.cc).
// - Overload: a request that its model would refuse for lack of time is refused at once
//   (early_refusal.cc). Models' processes need the variable that says where the blocks are, and
//   keep it.
// - Clients that leave: cancelled requests are counted for models' processes (cancellations.cc),
//   which keep the variable that says where.
// - The end of the supervisor, however it comes: standard input ends, and the whole process group
// is
//   killed. PR_SET_PDEATHSIG would leave the children, and a thread of the supervisor that ends
//   would trigger it.
// - Shared memory: the Python backend gives all users access after creating it, whatever the umask;
//   fchmod removes that access.
// - Temporary folders: the Python backend creates one under /tmp, whatever TMPDIR says. Links in
// the
//   folder FUSEWIRE_TEMPORARY_FOLDERS record them, so that the supervisor can remove them.
//
// The other variables and LD_PRELOAD are removed, so that child processes do not inherit them.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tritonserver/cancellations.h"
#include "tritonserver/early_refusal.h"
#include "tritonserver/stopping.h"

namespace {

char temporary_folders[PATH_MAX];

// Removes a variable, and its value also from /proc/PID/environ. Returns a copy; nullptr: there is
// none.
char* take(const char* variable) {
  char* value = getenv(variable);
  if (value == nullptr) return nullptr;
  char* copy = strdup(value);
  explicit_bzero(value, strlen(value));
  unsetenv(variable);
  return copy;
}

void insert_secret(int argc, char** argv) {
  char* secret = take("FUSEWIRE_RESTRICTED_APIS");
  for (int i = 1; secret != nullptr && i < argc; ++i) {
    const char* equals = strchr(argv[i], '=');
    if (equals == nullptr || strcmp(equals, "=$FUSEWIRE_RESTRICTED_APIS") != 0) continue;
    const int flag = static_cast<int>(equals - argv[i]);
    if (asprintf(&argv[i], "%.*s=%s", flag, argv[i], secret) < 0) abort();
  }
  free(secret);
}

// Removes this object from LD_PRELOAD. It comes first there; the rest is the user's and is also for
// child processes.
void leave_preload() {
  const char* preload = getenv("LD_PRELOAD");
  const char* rest = preload == nullptr ? nullptr : strchr(preload, ':');
  if (rest != nullptr) {
    setenv("LD_PRELOAD", rest + 1, 1);
  } else {
    unsetenv("LD_PRELOAD");
  }
}

void* follow_supervisor(void* argument) {
  const int input = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  pid_t dead = 0;
  while (read(input, &dead, sizeof dead) == sizeof dead) {
    if (dead > 0) {
      waitpid(dead, nullptr, WNOHANG);
    } else {
      stopping::begin(dead);
    }
  }
  kill(0, SIGKILL);
  return nullptr;
}

void start_following() {
  // Child processes must not hold the pipe: their standard input is /dev/null.
  const intptr_t input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0) abort();
  close(null);
  sigset_t all, usual;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &usual);  // signals are for tritonserver's own threads
  pthread_t thread;
  if (pthread_create(&thread, nullptr, follow_supervisor, reinterpret_cast<void*>(input))) abort();
  pthread_sigmask(SIG_SETMASK, &usual, nullptr);
}

__attribute__((constructor)) void prepare(int argc, char** argv, char**) {
  // Not in the shell of a script that starts tritonserver, whose argv would show the secret again.
  if (strcmp(program_invocation_short_name, "tritonserver") != 0) return;
  leave_preload();
  insert_secret(argc, argv);
  if (char* folder = take("FUSEWIRE_TEMPORARY_FOLDERS")) {
    snprintf(temporary_folders, sizeof temporary_folders, "%s", folder);
    free(folder);
  }
  early_refusal::watch(getenv("FUSEWIRE_ADMISSION_BLOCKS"));
  const char* const number = "FUSEWIRE_CANCELLATIONS";
  if (!cancellations::count_in(getenv(number))) unsetenv(number);
  start_following();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fchmod(int file, mode_t mode) noexcept {
  return static_cast<int>(
      syscall(SYS_fchmod, file, mode & ~static_cast<mode_t>(S_IRWXG | S_IRWXO)));
}

int kill(pid_t process, int signal) noexcept {
  if (process > 0 && getpgid(process) != getpgrp()) {
    errno = ESRCH;
    return -1;
  }
  return static_cast<int>(syscall(SYS_kill, process, signal));
}

char* mkdtemp(char* path) noexcept {
  using Function = char* (*)(char*);
  char* made = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "mkdtemp"))(path);
  char* record = nullptr;
  if (made != nullptr && temporary_folders[0] != 0 && strncmp(made, "/tmp/", 5) == 0 &&
      asprintf(&record, "%s/%s", temporary_folders, made + 5) > 0) {
    if (symlink(made, record) != 0) perror(record);
    free(record);
  }
  return made;
}

}  // extern "C"
#pragma GCC visibility pop
