// oneDNN's matmul behind a C interface, for gemm.py: weights in the layout that oneDNN prefers,
// bias and erf GELU fused, the primitive made once for a row count. Errors go to stderr.
#include <omp.h>

#include <cstdint>
#include <iostream>
#include <oneapi/dnnl/dnnl.hpp>

namespace {

using dnnl::matmul;
using dnnl::memory;

constexpr auto kFloat = memory::data_type::f32;
constexpr auto kRows = memory::format_tag::ab;

struct Linear {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  int64_t m, n, k;
  bool gelu;
  memory::desc packed_layout;
  memory weight, bias, x, out;
  matmul product;

  matmul::primitive_desc describe(const memory::desc& weight_layout) const {
    dnnl::primitive_attr attributes;
    if (gelu) {
      dnnl::post_ops after;
      after.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0, 0);
      attributes.set_post_ops(after);
    }
    return {engine,
            {{m, k}, kFloat, kRows},
            weight_layout,
            {{1, n}, kFloat, kRows},
            {{m, n}, kFloat, kRows},
            attributes};
  }

  // Everything that depends on the row count, with the weights as they are packed.
  void prepare(int64_t rows) {
    m = rows;
    product = matmul(describe(packed_layout));
    x = memory({{m, k}, kFloat, kRows}, engine, nullptr);
    out = memory({{m, n}, kFloat, kRows}, engine, nullptr);
  }
};

template <class Body>
auto reported(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    std::cerr << "oneDNN: " << error.what() << " (status " << error.status << ")\n";
    return {};
  }
}

}  // namespace

extern "C" {

void onednn_set_threads(int threads) {
  omp_set_num_threads(threads);
}

// weight [n, k] and bias [n], both copied; packed as oneDNN wants it for `m` rows. Null on error.
void* onednn_linear(int64_t m, int64_t n, int64_t k, float* weight, float* bias, int gelu) {
  return reported([&]() -> void* {
    auto* linear = new Linear;
    linear->m = m, linear->n = n, linear->k = k, linear->gelu = gelu;
    linear->packed_layout =
        linear->describe({{k, n}, kFloat, memory::format_tag::any}).weights_desc();
    linear->weight = memory(linear->packed_layout, linear->engine);
    memory plain({{k, n}, kFloat, memory::format_tag::ba}, linear->engine, weight);
    dnnl::reorder(plain, linear->weight).execute(linear->stream, plain, linear->weight);
    memory given({{1, n}, kFloat, kRows}, linear->engine, bias);
    linear->bias = memory({{1, n}, kFloat, kRows}, linear->engine);
    dnnl::reorder(given, linear->bias).execute(linear->stream, given, linear->bias);
    linear->stream.wait();
    linear->prepare(m);
    return linear;
  });
}

// For another number of rows. False on error.
bool onednn_prepare(void* erased, int64_t m) {
  return reported([&] {
    static_cast<Linear*>(erased)->prepare(m);
    return true;
  });
}

// out [m, n] = gelu(x [m, k] . weight^T + bias). False on error.
bool onednn_run(void* erased, float* x, float* out) {
  return reported([&] {
    auto& linear = *static_cast<Linear*>(erased);
    linear.x.set_data_handle(x);
    linear.out.set_data_handle(out);
    linear.product.execute(linear.stream, {{DNNL_ARG_SRC, linear.x},
                                           {DNNL_ARG_WEIGHTS, linear.weight},
                                           {DNNL_ARG_BIAS, linear.bias},
                                           {DNNL_ARG_DST, linear.out}});
    linear.stream.wait();
    return true;
  });
}

void onednn_free(void* erased) {
  delete static_cast<Linear*>(erased);
}

}  // extern "C"
