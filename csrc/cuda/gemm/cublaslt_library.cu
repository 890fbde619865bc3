// Defines the functions of cuBLASLt that are called here. Each forwards to the library, which is
// loaded by the first call: it takes 200 MB, and a build with CUDA also serves on machines that
// have neither a GPU nor the library.
#include <cublasLt.h>
#include <dlfcn.h>

#include "core/error.h"

namespace {

void* open_library() {
  // First the library that pip installs in site-packages (found by the module's run path) or the
  // system's; otherwise the toolkit's in its default folder.
  for (const char* path : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"}) {
    if (void* loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
      return loaded;
    }
  }
  return nullptr;
}

void* library() {
  static void* loaded = open_library();
  if (!loaded) {
    fusewire::fail("cuBLASLt: got ", dlerror(),
                   ", wanted the library of CUDA 13; install it: ", "pip install nvidia-cublas");
  }
  return loaded;
}

template <class Function>
Function symbol(Function, const char* name) {
  void* found = dlsym(library(), name);
  if (!found) {
    fusewire::fail("cuBLASLt: got a library without ", name, ", wanted that of CUDA 13; install ",
                   "it: pip install nvidia-cublas");
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

#define FORWARD(result, name, parameters, arguments) \
  result name parameters {                           \
    static const auto real = symbol(&name, #name);   \
    return real arguments;                           \
  }

extern "C" {

FORWARD(size_t, cublasLtGetVersion, (), ())
FORWARD(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(cublasStatus_t, cublasLtMatmulDescInit_internal,
        (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
        (desc, size, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value,
         size_t bytes),
        (desc, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutInit_internal,
        (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows,
         uint64_t cols, int64_t ld),
        (layout, size, type, rows, cols, ld))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceInit_internal,
        (cublasLtMatmulPreference_t preference, size_t size), (preference, size))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const void* value, size_t bytes),
        (preference, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
        (const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
         void* value, size_t bytes, size_t* written),
        (algo, attribute, value, bytes, written))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
         cublasLtMatmulPreference_t preference, int asked,
         cublasLtMatmulHeuristicResult_t results[], int* returned),
        (handle, operation, a, b, c, d, preference, asked, results, returned))
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
         const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
         size_t workspace_bytes, cudaStream_t stream),
        (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
         workspace, workspace_bytes, stream))

}  // extern "C"
