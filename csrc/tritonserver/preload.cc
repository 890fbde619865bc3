// Preloaded into tritonserver (serving/supervisor/launch.py), for what only code inside its process
// can do.
//
// - Secret arguments: argv is readable by every user of the machine (/proc/PID/cmdline), the
//   environment by this user alone. An argument --FLAG=$FUSEWIRE_RESTRICTED_APIS gets that
//   variable's value before main() runs, in memory that /proc does not show. Where this object is
//   not loaded, tritonserver refuses the placeholder and exits.
// - Dead children: only a parent can reap a process, and tritonserver reaps none that was killed.
//   The supervisor writes their process ids into standard input. tritonserver may kill them again
//   much later, when the id is another process's: it kills in its own process group alone.
// - The end of the server: what that means for requests (stopping.cc), as the supervisor says
// there.
// - Overload: a request that its model would refuse for lack of time is refused at once
//   (early_refusal.cc). Models' processes keep the variable that says where: they need it, too.
// - Clients that leave: cancelled requests are counted where models' processes see it
//   (cancellations.cc). They keep the variable that says where.
// - The end of the supervisor, however it comes: standard input ends, and with it the whole process
//   group. PR_SET_PDEATHSIG would leave the children, and ends with a thread of the supervisor.
// - Shared memory: the Python backend opens its mode to all after it was made, whatever the umask.
// - Temporary folders: the Python backend makes one under /tmp, whatever TMPDIR says. Links in the
//   folder FUSEWIRE_TEMPORARY_FOLDERS record them, so that the supervisor can remove them.
//
// The other variables and LD_PRELOAD are removed: child processes get none of this.
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

// Removes a variable, its value also from /proc/PID/environ. Returns a copy, nullptr for none.
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

// This object comes first in LD_PRELOAD; what follows is the user's, and for child processes too.
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
  // Child processes must not hold the pipe: they get /dev/null for standard input.
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
  // Not in the shell of a script that starts tritonserver: its argv would be shown again.
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
