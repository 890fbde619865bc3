// Helpers to define functions of tritonserver here too, so that they are called instead of its own.
#pragma once

#include <dlfcn.h>

// The server's own function of that name.
#define REAL(name)                                                                       \
  ([] {                                                                                  \
    static const auto real = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)); \
    return real;                                                                         \
  }())
#define EXPORTED extern "C" __attribute__((visibility("default")))

struct TRITONSERVER_Error;
enum TRITONSERVER_Error_Code { TRITONSERVER_ERROR_UNAVAILABLE = 4 };

extern "C" TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char*);
