// The stages of stopping the server, as its supervisor announces them.
#pragma once

#include <sys/types.h>

struct TRITONSERVER_Error;

namespace stopping {

// What the supervisor writes in place of process ids (serving/supervisor/embedded.py).
constexpr pid_t unready = -1;  // not ready; requests are still accepted
constexpr pid_t closed = -2;   // and no more requests are accepted

void begin(pid_t stage);

// error() is for requests that are not answered because the server stops.
bool is_closed();
TRITONSERVER_Error* error();

}  // namespace stopping
