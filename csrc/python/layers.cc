// The fused layers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "layers/transformer_layer.h"
#include "python/casters.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;
using namespace py::literals;

Norm norm_named(std::string_view name) {
  if (name == "layer_norm") return Norm::kLayerNorm;
  if (name == "rms_norm") return Norm::kRmsNorm;
  fail("LayerSpec: norm: got '", name, "', wanted layer_norm or rms_norm");
}

NormWeights norm_weights(const py::handle& pair) {
  const auto [weight, bias] = pair.cast<std::pair<Tensor, std::optional<Tensor>>>();
  return {weight, bias};
}

LayerWeights layer_weights(const py::dict& weights) {
  LayerWeights out;
  const std::pair<const char*, std::shared_ptr<const Linear>*> linears[] = {
      {"qkv", &out.qkv},
      {"attention_output", &out.attention_output},
      {"intermediate", &out.intermediate},
      {"output", &out.output}};
  const std::pair<const char*, std::optional<NormWeights>*> norms[] = {
      {"attention_norm", &out.attention_norm},
      {"q_norm", &out.q_norm},
      {"k_norm", &out.k_norm},
      {"attention_post_norm", &out.attention_post_norm},
      {"output_post_norm", &out.output_post_norm}};
  const auto take = [&](const std::string& name, const py::handle& value) {
    for (const auto& [known, linear] : linears) {
      if (name == known) return void(*linear = value.cast<std::shared_ptr<Linear>>());
    }
    for (const auto& [known, norm] : norms) {
      if (name != known) continue;
      if (!value.is_none()) *norm = norm_weights(value);
      return;
    }
    if (name == "output_norm") return void(out.output_norm = norm_weights(value));
    fail("TransformerLayer: weights: got '", name,
         "', wanted qkv, q_norm, k_norm, attention_output, attention_norm, attention_post_norm, "
         "intermediate, output, output_norm, output_post_norm");
  };
  for (const auto& [key, value] : weights) take(key.cast<std::string>(), value);
  if (!out.output_norm.weight.data) fail("TransformerLayer: output_norm: got none, wanted weights");
  return out;
}

using RotaryTuple = std::optional<std::tuple<Tensor, Tensor, Tensor>>;

std::optional<Rotary> rotary_tables(const RotaryTuple& tuple) {
  if (!tuple) return std::nullopt;
  return Rotary{std::get<0>(*tuple), std::get<1>(*tuple), std::get<2>(*tuple)};
}

LayerSpec layer_spec(int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads,
                     int64_t head_dim, Activation activation, bool gated, std::string_view norm,
                     float norm_eps, bool pre_norm, bool parallel, int64_t window, float scale,
                     float soft_cap) {
  if (head_dim == 0 && heads > 0) {
    if (hidden % heads) {
      fail("LayerSpec: heads: got ", heads, ", wanted a divisor of hidden ", hidden,
           "; or give head_dim");
    }
    head_dim = hidden / heads;
  }
  if (kv_heads == 0) kv_heads = heads;
  return {hidden,           intermediate, heads,    kv_heads, head_dim, activation, gated,
          norm_named(norm), norm_eps,     pre_norm, parallel, window,   scale,      soft_cap};
}

}  // namespace

void register_layers(py::module_& m) {
  py::class_<LayerSpec>(m, "LayerSpec", "What kind of Transformer layer it is.")
      .def(py::init(&layer_spec), py::kw_only(), "hidden"_a, "intermediate"_a, "heads"_a,
           "kv_heads"_a = 0, "head_dim"_a = 0, "activation"_a = "gelu_erf", "gated"_a = false,
           "norm"_a = "layer_norm", "norm_eps"_a = 1e-12f, "pre_norm"_a = false,
           "parallel"_a = false, "window"_a = 0, "scale"_a = 0.0f, "soft_cap"_a = 0.0f,
           "kv_heads 0: as many as heads; head_dim 0: hidden / heads; scale 0: 1 / sqrt(head_dim).")
      .def_readonly("hidden", &LayerSpec::hidden)
      .def_readonly("intermediate", &LayerSpec::intermediate)
      .def_readonly("heads", &LayerSpec::heads)
      .def_readonly("kv_heads", &LayerSpec::kv_heads)
      .def_readonly("head_dim", &LayerSpec::head_dim)
      .def_readonly("window", &LayerSpec::window);

  py::class_<TransformerLayer>(m, "TransformerLayer", "One Transformer layer as a single call.")
      .def_property_readonly("spec", &TransformerLayer::spec)
      .def(py::init([](const LayerSpec& spec, const py::dict& weights) {
             return TransformerLayer(spec, layer_weights(weights));
           }),
           "spec"_a, "weights"_a)
      .def(
          "forward",
          [](const TransformerLayer& layer, const Tensor& x, const SequenceBatch& batch,
             Workspace& workspace, const Tensor* position_bias, const RotaryTuple& rotary,
             const Stream& stream) {
            const std::optional<Rotary> tables = rotary_tables(rotary);
            py::gil_scoped_release release;
            layer.forward(x, batch, workspace, position_bias, tables ? &*tables : nullptr, stream);
          },
          "x"_a, "batch"_a, "workspace"_a, "position_bias"_a = py::none(), "rotary"_a = py::none(),
          py::arg_v("stream", Stream{}, "Stream()"),
          "Replaces x[tokens, hidden] by the layer's output. rotary: (cos, sin, positions).")
      .def(
          "forward_cached",
          [](const TransformerLayer& layer, const Tensor& x, const PagedBatch& batch,
             const Tensor& keys, const Tensor& values, Workspace& workspace,
             const RotaryTuple& rotary, const Tensor* alibi_slopes, const Stream& stream) {
            const std::optional<Rotary> tables = rotary_tables(rotary);
            py::gil_scoped_release release;
            layer.forward_cached(x, batch, keys, values, workspace, tables ? &*tables : nullptr,
                                 alibi_slopes, stream);
          },
          "x"_a, "batch"_a, "keys"_a, "values"_a, "workspace"_a, "rotary"_a = py::none(),
          "alibi_slopes"_a = py::none(), py::arg_v("stream", Stream{}, "Stream()"),
          "The same for new tokens of sequences whose keys and values lie in pages [pages, "
          "kv_heads, page_size, head_dim]: they join them there and see those up to themselves.");
}

}  // namespace fusewire
