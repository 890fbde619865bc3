// How far the end of the server has come, as its supervisor says.
#pragma once

#include <sys/types.h>

struct TRITONSERVER_Error;

namespace stopping {

// What the supervisor writes in place of process ids (serving/supervisor/embedded.py).
constexpr pid_t unready = -1;  // readiness is false; requests are taken
constexpr pid_t closed = -2;   // and no more requests are

void begin(pid_t stage);

// The error of requests that are not answered as the server stops.
bool is_closed();
TRITONSERVER_Error* error();

}  // namespace stopping
