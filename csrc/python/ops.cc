// Binds the op table: names, arguments and help come from ops.def.
#include "ops/ops.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime.h"
#include "python/casters.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;

// "(const Tensor& out, float eps)" -> {"out", "eps"}: the last word of each argument.
const std::vector<std::string>& argument_names(const std::string& signature) {
  static std::list<std::vector<std::string>> kept;  // py::arg keeps pointers into these
  std::vector<std::string> names;
  size_t begin = 1;
  while (begin < signature.size()) {
    size_t end = signature.find_first_of(",)", begin);
    size_t word = signature.find_last_of(" &*", end - 1) + 1;
    names.push_back(signature.substr(word, end - word));
    begin = end + 1;
  }
  kept.push_back(std::move(names));
  return kept.back();
}

template <class... Args, size_t... kIndex>
void bind_arguments(py::module_& m, const char* name, void (*op)(Args...),
                    const std::string& signature, const char* meaning,
                    std::index_sequence<kIndex...>) {
  const std::vector<std::string>& names = argument_names(signature);
  constexpr size_t kLast = sizeof...(Args) - 1;  // the stream, which has a default
  const auto argument = [&](auto index) {
    constexpr size_t i = decltype(index)::value;
    if constexpr (i == kLast) {
      return py::arg_v(names[i].c_str(), Stream{}, "Stream()");
    } else {
      return py::arg(names[i].c_str());
    }
  };
  m.def(name, op, meaning, argument(std::integral_constant<size_t, kIndex>{})...,
        py::call_guard<py::gil_scoped_release>());
}

template <class... Args>
void bind_op(py::module_& m, const char* name, void (*op)(Args...), const char* signature,
             const char* meaning) {
  bind_arguments(m, name, op, signature, meaning, std::index_sequence_for<Args...>{});
}

}  // namespace

void register_ops(py::module_& m) {
  py::class_<SequenceBatch>(m, "SequenceBatch",
                            "Where each sequence of a packed matrix begins: cu_seqlens "
                            "int32[sequences + 1].")
      .def(py::init([](const Tensor& cu_seqlens, const Stream& stream) {
             return SequenceBatch(cu_seqlens, upload(cu_seqlens, "input", stream));
           }),
           py::arg("cu_seqlens"), py::arg_v("stream", Stream{}, "Stream()"))
      .def(py::init<Tensor, Tensor>(), py::arg("cu_seqlens"), py::arg("device_offsets"),
           "The same offsets twice: on the host, and on the device of the kernels.")
      .def_static("bucket", &SequenceBatch::bucket, py::arg("device_offsets"), py::arg("tokens"),
                  py::arg("max_seqlen"),
                  "Returns a batch of which only upper bounds are known, for a capture; the "
                  "offsets are read at every replay.")
      .def_property_readonly("tokens", &SequenceBatch::tokens)
      .def_property_readonly("sequences", &SequenceBatch::sequences)
      .def_property_readonly("max_seqlen", &SequenceBatch::max_seqlen);
  py::class_<PagedBatch>(m, "PagedBatch",
                         "New tokens of sequences whose keys and values are in pages: position p "
                         "is row p % page_size of page block_table[sequence, p / page_size].")
      .def(py::init([](const SequenceBatch& batch, const Tensor& context_lengths,
                       const Tensor& block_table, int64_t page_size, const Stream& stream) {
             return PagedBatch(batch, context_lengths, block_table, page_size,
                               upload(context_lengths, "input", stream),
                               upload(block_table, "input", stream));
           }),
           py::arg("batch"), py::arg("context_lengths"), py::arg("block_table"),
           py::arg("page_size"), py::arg_v("stream", Stream{}, "Stream()"),
           "context_lengths int32[sequences]: positions in the cache once the new tokens are "
           "stored. block_table int32[sequences, pages]. Both are on the host.")
      .def(py::init<SequenceBatch, Tensor, Tensor, int64_t, Tensor, Tensor>(), py::arg("batch"),
           py::arg("context_lengths"), py::arg("block_table"), py::arg("page_size"),
           py::arg("device_context_lengths"), py::arg("device_block_table"),
           "The same lengths and tables twice: on the host, and on the device of the kernels.")
      .def_static("bucket", &PagedBatch::bucket, py::arg("batch"),
                  py::arg("device_context_lengths"), py::arg("device_block_table"),
                  py::arg("page_size"), py::arg("max_context"),
                  "Returns a batch for a capture: lengths and tables are read at every replay.")
      .def_property_readonly("tokens", &PagedBatch::tokens)
      .def_property_readonly("sequences", &PagedBatch::sequences)
      .def_property_readonly("page_size", &PagedBatch::page_size)
      .def_property_readonly("max_context", &PagedBatch::max_context);
  m.attr("UNLIMITED") = kUnlimited;
  py::class_<AttentionSpec>(
      m, "AttentionSpec",
      "The settings of an attention. Query i attends to key j if i - j <= left and j - i <= right; "
      "by default to all keys; right 0: causal. soft_cap 0: none. dropout: the probability that a "
      "weight is dropped, by Philox with the key dropout_seed from the counter dropout_offset on. "
      "k_scale and v_scale: of a cache in float8.")
      .def(py::init([](int64_t heads, float scale, int64_t left, int64_t right, float soft_cap,
                       float dropout, int64_t dropout_seed, int64_t dropout_offset, float k_scale,
                       float v_scale) {
             return AttentionSpec{
                 heads,   scale,  {left, right}, soft_cap, {dropout, dropout_seed, dropout_offset},
                 k_scale, v_scale};
           }),
           py::kw_only(), py::arg("heads"), py::arg("scale"), py::arg("left") = kUnlimited,
           py::arg("right") = kUnlimited, py::arg("soft_cap") = 0.0f, py::arg("dropout") = 0.0f,
           py::arg("dropout_seed") = 0, py::arg("dropout_offset") = 0, py::arg("k_scale") = 1.0f,
           py::arg("v_scale") = 1.0f);
  py::class_<Linear, std::shared_ptr<Linear>>(
      m, "Linear",
      "weight[out_features, in_features] packed for the target, with its bias. Both come from the "
      "stream's device or both from the host. nbytes: the memory that it allocates, which does not "
      "include a weight on a GPU that it shares. transposed: the weight is [in_features, "
      "out_features]. format: the format to pack the weight in, float32, float16, bfloat16, int8, "
      "float8_e4m3 or float8_e4m3_blocks; None: that of the tensor. scales: float32[out_features] "
      "of an int8 or float8_e4m3 weight; None: computed from the largest magnitude of each row. A "
      "uint8 weight consists of the format's own bytes and needs scales. For float8_e4m3_blocks it "
      "must be uint8, with scales [out_features / 128, in_features / 128], rounded up. "
      "input_scale: the scale that quantises the input of a float8_e4m3 weight, with saturation; "
      "0: each row is scaled by its own largest magnitude.")
      .def(py::init([](const Tensor& weight, const Tensor* bias, const Stream& stream,
                       bool transposed, std::optional<std::string> format, const Tensor* scales,
                       float input_scale) {
             std::optional<Format> named;
             if (format) named = format_named(*format);
             return std::make_shared<Linear>(weight, bias, stream, transposed, named, scales,
                                             input_scale);
           }),
           py::arg("weight"), py::arg("bias") = py::none(),
           py::arg_v("stream", Stream{}, "Stream()"), py::arg("transposed") = false,
           py::arg("format") = py::none(), py::arg("scales") = py::none(),
           py::arg("input_scale") = 0.0f)
      .def_static(
          "of_int4",
          [](const Tensor& codes, const Tensor& scales, const Tensor* zeros, const Tensor* bias,
             const Stream& stream, const std::string& format, const Tensor* order) {
            return std::make_shared<Linear>(
                Linear::of_int4(codes, scales, zeros, bias, stream, format_named(format), order));
          },
          py::arg("codes"), py::arg("scales"), py::arg("zeros") = py::none(),
          py::arg("bias") = py::none(), py::arg_v("stream", Stream{}, "Stream()"),
          py::arg("format") = "int4", py::arg("order") = py::none(),
          "Returns a Linear with a weight in 4 bits. codes uint8[out_features, in_features / 2], "
          "with the first of two inputs in the low bits, stand for scales * (code - zeros). scales "
          "float32 and zeros uint8 are [out_features, groups] for groups of neighbouring inputs; "
          "zeros None: 8. The size of a group is a power of two, at least 32, or all inputs. "
          "format: int4, or on CPUs w4a8, for which the input is quantised to int8, with a scale "
          "per row from its largest magnitude. order int32[in_features], on the host: input i of "
          "the codes multiplies input order[i] of a row; None: the same order.")
      .def("refresh", &Linear::refresh, py::arg("weight"), py::arg("bias") = py::none(),
           py::arg_v("stream", Stream{}, "Stream()"),
           "Replaces the weight and bias by others of the same shapes.",
           py::call_guard<py::gil_scoped_release>())
      .def("with_bias", &Linear::with_bias, py::arg("bias"),
           py::arg_v("stream", Stream{}, "Stream()"),
           "Returns a Linear with the same weight, in the same memory, and this bias.")
      .def_property_readonly("in_features", &Linear::in_features)
      .def_property_readonly("out_features", &Linear::out_features)
      .def_property_readonly("format",
                             [](const Linear& linear) { return name_of(linear.weight().format); })
      .def_property_readonly("nbytes", &Linear::bytes);

  m.def(
      "weight_formats",
      [](const std::string& dtype, const Stream& stream) {
        return weight_formats(dtype_named(dtype), stream);
      },
      py::arg("dtype"), py::arg_v("stream", Stream{}, "Stream()"),
      "Returns the formats of weights for which the stream's device has kernels that compute in "
      "dtype.");
  m.def(
      "rows_to_tune",
      [](int64_t max_rows, const std::string& dtype, const Stream& stream) {
        return rows_to_tune(max_rows, dtype_named(dtype), stream);
      },
      py::arg("max_rows"), py::arg("dtype"), py::arg_v("stream", Stream{}, "Stream()"),
      "Returns the numbers of rows, ascending, to run a model with while its stream is tuning, so "
      "that the kernels of its matrix products are chosen for every number up to max_rows; empty "
      "if there is no choice.");

  py::dict table;
#define OP(name, signature, meaning)                  \
  bind_op(m, #name, &ops::name, #signature, meaning); \
  table[#name] = meaning;
#include "ops/ops.def"
#undef OP
  m.attr("OPS") = table;
}

}  // namespace fusewire
