// Refuses requests for lack of time before they cost more than being read by an endpoint.
//
// To make a request an endpoint calls these functions of tritonserver's C API (tritonserver.h), in
// one thread: InferenceRequestNew, its setters, AddInput, AppendInputData, ServerInferAsync
// (stopping.cc). Only plain requests are judged, with inputs that request_inputs.h knows and no
// parameters except those of admission: any other request may be invalid, and must then be answered
// as such.
#include "tritonserver/early_refusal.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/interpose.h"
#include "tritonserver/request_inputs.h"
#include "tritonserver/utf8.h"

struct TRITONBACKEND_Request;
struct TRITONSERVER_BufferAttributes;
struct TRITONSERVER_Server;
using Error = TRITONSERVER_Error;
using Request = TRITONSERVER_InferenceRequest;

enum MemoryType : int { CPU = 0, CPU_PINNED = 1 };
enum ParameterType : int { STRING = 0, INT = 1 };

extern "C" {
void TRITONSERVER_ErrorDelete(Error*);
Error* TRITONSERVER_InferenceRequestNew(Request**, TRITONSERVER_Server*, const char*, int64_t);
Error* TRITONSERVER_InferenceRequestAddInput(Request*, const char*, DataType, const int64_t*,
                                             uint64_t);
Error* TRITONSERVER_InferenceRequestAppendInputData(Request*, const char*, const void*, size_t,
                                                    MemoryType, int64_t);
Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request*, const char*, const void*, TRITONSERVER_BufferAttributes*);
Error* TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes*, size_t*);
Error* TRITONSERVER_BufferAttributesMemoryType(TRITONSERVER_BufferAttributes*, MemoryType*);
Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(Request*, uint64_t*);
// A TRITONSERVER_InferenceRequest is also a TRITONBACKEND_Request.
Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request*, uint32_t*);
Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request*, uint32_t, const char**,
                                      ParameterType*, const void**);
}

namespace {

// As in serving/instance/options.py.
constexpr int64_t most_priority = 1000, most_timeout_us = int64_t{1} << 62;
constexpr int64_t most_tenant_characters = 128;

// The request that this thread is making.
struct Making {
  Request* request = nullptr;
  std::string model;
  int64_t version = -1;
  std::vector<request_inputs::Input> inputs;
};
thread_local Making making;
bool watching = false;

bool succeeded(Error* error) {
  if (error != nullptr) REAL(TRITONSERVER_ErrorDelete)(error);
  return error == nullptr;
}

// Notes data of an input of the request that this thread is making.
void add_part(Request* request, const char* name, const void* base, size_t bytes,
              MemoryType memory) {
  if (making.request != request || request == nullptr) return;
  for (request_inputs::Input& input : making.inputs) {
    if (input.name != name) continue;
    input.base = static_cast<const unsigned char*>(base);
    input.bytes = bytes;
    input.parts += memory == CPU || memory == CPU_PINNED ? 1 : 2;
  }
}

bool read_parameters(Request* request, admission::Asked* asked) {
  const auto own = reinterpret_cast<TRITONBACKEND_Request*>(request);
  uint64_t timeout_us = 0;
  uint32_t count = 0;
  if (!succeeded(REAL(TRITONSERVER_InferenceRequestTimeoutMicroseconds)(request, &timeout_us)) ||
      !succeeded(REAL(TRITONBACKEND_RequestParameterCount)(own, &count))) {
    return false;
  }
  for (uint32_t index = 0; index < count; ++index) {
    const char* key = nullptr;
    ParameterType type = STRING;
    const void* value = nullptr;
    if (!succeeded(REAL(TRITONBACKEND_RequestParameter)(own, index, &key, &type, &value))) {
      return false;
    }
    if (type == INT && strcmp(key, "request_priority") == 0) {
      asked->priority = *static_cast<const int64_t*>(value);
      if (asked->priority < -most_priority || asked->priority > most_priority) return false;
    } else if (type == INT && strcmp(key, "timeout") == 0) {  // of the `generate` extension
      const int64_t us = *static_cast<const int64_t*>(value);
      if (us < 0 || us > most_timeout_us) return false;
      if (us > 0) timeout_us = static_cast<uint64_t>(us);
    } else if (type == STRING && strcmp(key, "tenant") == 0) {
      asked->tenant = static_cast<const char*>(value);
      const auto text = reinterpret_cast<const unsigned char*>(asked->tenant.data());
      const int64_t found = utf8::characters(text, asked->tenant.size());
      if (found < 0 || found > most_tenant_characters) return false;
    } else {
      return false;
    }
  }
  asked->timeout_s = static_cast<double>(timeout_us) / 1e6;
  return true;
}

// Runs `act`, which is not needed to answer the request: if it fails, for example for lack of
// memory, the request is accepted. No exception may reach tritonserver.
template <typename Act>
void attempt(Act act) noexcept {
  try {
    act();
  } catch (...) {
    making.request = nullptr;
  }
}

std::string refusal_of(Request* request) {
  const admission::Judged by = admission::judged_of(making.model, making.version);
  admission::Asked asked;
  if (by.most_rows < 1 || !read_parameters(request, &asked)) return {};
  const bool is_plain = by.generates ? request_inputs::read_generation(making.inputs, &asked)
                                     : request_inputs::read(making.inputs, by, &asked);
  if (!is_plain) return {};
  return admission::refused_by_all(making.model, making.version, asked);
}

}  // namespace

namespace early_refusal {

void watch(const char* prefix) {
  if (prefix == nullptr || *prefix == 0) return;
  admission::watch_blocks(prefix);
  watching = true;
}

Error* error(Request* request) {
  if (!watching || making.request != request) return nullptr;
  making.request = nullptr;
  std::string words;
  attempt([&] { words = refusal_of(request); });
  if (words.empty()) return nullptr;
  return REAL(TRITONSERVER_ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, words.c_str());
}

}  // namespace early_refusal

EXPORTED Error* TRITONSERVER_InferenceRequestNew(Request** request, TRITONSERVER_Server* server,
                                                 const char* model, int64_t version) {
  Error* const failed = REAL(TRITONSERVER_InferenceRequestNew)(request, server, model, version);
  if (watching && failed == nullptr) {
    attempt([&] {
      making.request = *request;
      making.model = model;
      making.version = version;
      making.inputs.clear();
    });
  }
  return failed;
}

EXPORTED Error* TRITONSERVER_InferenceRequestAddInput(Request* request, const char* name,
                                                      DataType type, const int64_t* shape,
                                                      uint64_t dimensions) {
  if (making.request == request && request != nullptr) {
    attempt([&] { making.inputs.push_back({name, type, {shape, shape + dimensions}}); });
  }
  return REAL(TRITONSERVER_InferenceRequestAddInput)(request, name, type, shape, dimensions);
}

// Called by the HTTP endpoint.
EXPORTED Error* TRITONSERVER_InferenceRequestAppendInputData(Request* request, const char* name,
                                                             const void* base, size_t bytes,
                                                             MemoryType memory, int64_t id) {
  add_part(request, name, base, bytes, memory);
  return REAL(TRITONSERVER_InferenceRequestAppendInputData)(request, name, base, bytes, memory, id);
}

// Called by the gRPC endpoint.
EXPORTED Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request* request, const char* name, const void* base, TRITONSERVER_BufferAttributes* about) {
  size_t bytes = 0;
  MemoryType memory = CPU;
  if (succeeded(REAL(TRITONSERVER_BufferAttributesByteSize)(about, &bytes)) &&
      succeeded(REAL(TRITONSERVER_BufferAttributesMemoryType)(about, &memory))) {
    add_part(request, name, base, bytes, memory);
  }
  return REAL(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes)(request, name, base,
                                                                                about);
}
