"""Parameters as views of one buffer: for torch nothing changes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import transformers
from fusewire.errors import ConfigurationError
from fusewire.train.flat import FlatParameters
from safetensors.torch import load_file, load_model, save_model
from torch import nn


class Scaled(torch.autograd.Function):
    """y = x·w + b by elements, whose backward writes to the flat gradients as kernels do."""

    @staticmethod
    def forward(ctx, flat, x, w, b):
        ctx.flat = flat
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        place = ctx.flat.begin_backward(["w", "b"])
        for name, gradient in (("w", dy * x), ("b", dy)):
            begin = ctx.flat.offset(name)
            into = place.buffer[begin : begin + gradient.numel()]
            into.add_(gradient) if place.accumulate else into.copy_(gradient)
        return None, dy * w, *place.returned


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.b = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))
        self.flat = FlatParameters(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.flat.relink()
        return Scaled.apply(self.flat, x, self.w, self.b)

    def torchs(self, x: torch.Tensor) -> torch.Tensor:
        """The same by torch's own autograd, of parameters of its own."""
        return x * self.w + self.b


def twins() -> tuple[Toy, Toy]:
    return Toy(), Toy()


def inputs(seed: int = 1) -> torch.Tensor:
    return torch.randn(16, generator=torch.Generator().manual_seed(seed))


def bert() -> transformers.BertForMaskedLM:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=20,
    )
    return transformers.BertForMaskedLM(config)


def flattened() -> tuple[transformers.BertForMaskedLM, FlatParameters]:
    model = bert()
    layers = [layer.attention.self for layer in model.bert.encoder.layer]
    groups = [[part.query, part.key, part.value] for part in layers]
    weights = [[module.weight for module in group] for group in groups]
    biases = [[module.bias for module in group] for group in groups]
    return model, FlatParameters(model, [*weights, *biases])


def is_linked(model: nn.Module, flat: FlatParameters) -> bool:
    """Every parameter is the slice of `values` that its name says."""
    return all(
        p.data_ptr() == flat.values.data_ptr() + 4 * flat.offset(name)
        for name, p in model.named_parameters(remove_duplicate=False)
    )


def test_names_values_and_ties_are_those_of_before() -> None:
    plain, (model, flat) = bert(), flattened()
    before, after = plain.state_dict(), model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert is_linked(model, flat)
    assert flat.values.numel() == sum(p.numel() for p in model.parameters())
    table, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    assert flat.offset(table) == flat.offset(decoder)
    assert model.get_parameter(table) is model.get_parameter(decoder)


def test_slices_do_not_overlap_and_whole_cache_lines_stay_whole() -> None:
    model, flat = flattened()
    end = 0
    for name in flat.names:
        assert flat.offset(name) == end
        p = model.get_parameter(name)
        if p.numel() % 16 == 0:
            assert flat.offset(name) % 16 == 0
        end += p.numel()
    assert end == flat.values.numel()


def test_a_group_is_one_matrix() -> None:
    model, flat = flattened()
    part = model.bert.encoder.layer[1].attention.self
    begin = flat.offset("bert.encoder.layer.1.attention.self.query.weight")
    joined = flat.values[begin : begin + 3 * 32 * 32].view(96, 32)
    assert torch.equal(joined, torch.cat([part.query.weight, part.key.weight, part.value.weight]))


def test_groups_are_of_the_module_and_apart() -> None:
    module = nn.Linear(4, 4)
    with pytest.raises(ConfigurationError, match="another module"):
        FlatParameters(module, [[nn.Linear(4, 4).weight]])
    with pytest.raises(ConfigurationError, match="weight 2 times"):
        FlatParameters(module, [[module.weight, module.weight]])


@pytest.mark.parametrize("change", [nn.Module.half, lambda m: m.to("meta")])
def test_only_fp32_on_the_cpu_is_taken(change: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"weight: got .*, wanted float32 or bfloat16 on cpu"
    ):
        FlatParameters(change(nn.Linear(4, 4)))


def test_save_pretrained_writes_what_the_unchanged_model_writes(tmp_path) -> None:
    bert().save_pretrained(tmp_path / "plain")
    model, _ = flattened()
    model.save_pretrained(tmp_path / "flat")
    wanted = load_file(tmp_path / "plain" / "model.safetensors")
    got = load_file(tmp_path / "flat" / "model.safetensors")
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    read = transformers.BertForMaskedLM.from_pretrained(tmp_path / "flat")
    assert all(map(torch.equal, read.parameters(), bert().parameters()))


def test_a_saved_state_dict_loads_anywhere() -> None:
    model, _ = flattened()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert file.tell() < 1.5 * sum(4 * p.numel() for p in model.parameters()) + 50_000
    file.seek(0)
    plain = bert()
    nn.init.zeros_(plain.cls.predictions.decoder.weight)
    plain.load_state_dict(torch.load(file))
    assert all(map(torch.equal, plain.parameters(), model.parameters()))


def test_a_part_is_saved_alone() -> None:
    """By what writes storages: pickle, torch.save of a part of a state dict."""
    model, _ = flattened()
    head = {name: value for name, value in model.state_dict().items() if "transform" in name}
    file = io.BytesIO()
    torch.save(head, file)
    assert file.tell() < sum(4 * value.numel() for value in head.values()) + 10_000
    whole = sum(4 * p.numel() for p in model.parameters())
    assert len(pickle.dumps(model)) < 1.5 * whole + 100_000


def test_safetensors_saves_it_and_loads_into_it(tmp_path) -> None:
    model, flat = flattened()
    save_model(model, str(tmp_path / "model.safetensors"))
    wanted = flat.values.clone()
    with torch.no_grad():
        flat.values.zero_()
    load_model(model, str(tmp_path / "model.safetensors"))
    assert torch.equal(flat.values, wanted)
    assert is_linked(model, flat)


def pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_has_buffers_of_its_own(copied: Callable[[nn.Module], nn.Module]) -> None:
    model, flat = flattened()
    model.flat = flat
    twin = copied(model)
    twin.flat.relink()
    assert is_linked(twin, twin.flat)
    assert is_linked(model, flat)
    assert torch.equal(twin.flat.values, flat.values)
    assert twin.flat.names == flat.names
    with torch.no_grad():
        twin.bert.encoder.layer[0].output.dense.weight.fill_(3.0)
    assert not (flat.values == 3.0).any()
    assert twin.cls.predictions.decoder.weight is twin.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("moved", [copy.deepcopy, lambda module: module.double().float()])
def test_what_inference_mode_laid_out_trains(moved: Callable[[nn.Module], nn.Module]) -> None:
    model = moved(Toy())
    with torch.inference_mode():
        model(inputs())
    model(inputs()).sum().backward()
    with torch.no_grad():
        model.w.add_(model.w.grad)
    assert is_linked(model, model.flat)


def test_parameters_of_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        module = nn.Linear(4, 4)
    with pytest.raises(ConfigurationError, match=r"weight: got it from torch\.inference_mode"):
        FlatParameters(module)


def test_parameters_that_moved_are_moved_back() -> None:
    model, flat = flattened()
    wanted = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.double().float()
    assert not is_linked(model, flat)
    before = flat.version()
    flat.relink()
    assert is_linked(model, flat)
    assert flat.version() != before
    assert all(torch.equal(p, wanted[name]) for name, p in model.named_parameters())


def test_parameters_of_another_dtype_are_refused() -> None:
    model, flat = flattened()
    model.double()
    with pytest.raises(ConfigurationError, match=r"got float64 on cpu, wanted float32"):
        flat.relink()


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_state_dict_is_in_the_buffer(assign: bool) -> None:
    model, flat = flattened()
    other = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    other["cls.predictions.decoder.weight"] = other["bert.embeddings.word_embeddings.weight"]
    other["cls.predictions.decoder.bias"] = other["cls.predictions.bias"]
    before = flat.version()
    model.load_state_dict(other, assign=assign)
    flat.relink()
    assert is_linked(model, flat)
    assert (after := flat.version()) != before
    flat.relink()  # as the decoder does behind the encoder
    assert flat.version() == after
    for name, p in model.named_parameters(remove_duplicate=False):
        assert torch.equal(p, other[name])
        assert p.data_ptr() != other[name].data_ptr()
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_ties_that_were_broken_or_made_are_refused() -> None:
    model, flat = flattened()
    model.cls.predictions.decoder.weight = nn.Parameter(torch.zeros(50, 32))
    with pytest.raises(ConfigurationError, match=r"tie_weights"):
        flat.relink()
    model, flat = flattened()
    dense = [layer.output.dense for layer in model.bert.encoder.layer]
    dense[0].weight = dense[1].weight
    with pytest.raises(ConfigurationError, match=r"got one parameter, wanted two"):
        flat.relink()


def test_a_resized_table_is_refused() -> None:
    model, flat = flattened()
    model.resize_token_embeddings(60)
    with pytest.raises(ConfigurationError, match=r"got shape \[60, 32\], wanted \[50, 32\]"):
        flat.relink()


def test_the_version_changes_with_writes_alone() -> None:
    model, flat = flattened()
    first = flat.version()
    flat.relink()
    assert flat.version() == first
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias.add_(1.0)
    second = flat.version()
    assert second != first
    flat.written()
    assert flat.version() != second


def test_torch_takes_our_view_as_the_gradient() -> None:
    ours, theirs = twins()
    ours(inputs()).square().sum().backward()
    theirs.torchs(inputs()).square().sum().backward()
    for name in ("w", "b"):
        grad = ours.get_parameter(name).grad
        assert grad.data_ptr() == ours.flat.gradients.data_ptr() + 4 * ours.flat.offset(name)
        assert torch.equal(grad, theirs.get_parameter(name).grad)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_several_passes_add_up_in_place(to_none: bool) -> None:
    ours, theirs = twins()
    for _ in range(2):
        for seed in range(3):
            ours(inputs(seed)).square().sum().backward()
            theirs.torchs(inputs(seed)).square().sum().backward()
        for name in ("w", "b"):
            grad = ours.get_parameter(name).grad
            torch.testing.assert_close(grad, theirs.get_parameter(name).grad)
            assert grad.data_ptr() == ours.flat.gradients.data_ptr() + 4 * ours.flat.offset(name)
        ours.zero_grad(set_to_none=to_none)
        theirs.zero_grad(set_to_none=to_none)


def same_gradients(ours: Toy, theirs: Toy) -> None:
    torch.testing.assert_close(ours.w.grad, theirs.w.grad)
    torch.testing.assert_close(ours.b.grad, theirs.b.grad)


def test_parameters_used_twice_in_one_graph_have_the_sum() -> None:
    ours, theirs = twins()
    for _ in range(2):  # with .grad None, and with our view there
        ours(ours(inputs())).square().sum().backward()
        theirs.torchs(theirs.torchs(inputs())).square().sum().backward()
        same_gradients(ours, theirs)


def test_gradients_that_somebody_else_made_are_added_to() -> None:
    ours, theirs = twins()
    foreign = torch.ones(16)
    ours.w.grad = foreign
    theirs.w.grad = torch.ones(16)
    for seed in range(2):
        ours(inputs(seed)).square().sum().backward()
        theirs.torchs(inputs(seed)).square().sum().backward()
    same_gradients(ours, theirs)
    assert ours.w.grad.data_ptr() == foreign.data_ptr()


def test_gradients_by_autograd_grad_keep_their_values() -> None:
    ours, theirs = twins()
    parameters = [ours.w, ours.b]
    first = torch.autograd.grad(ours(inputs(1)).square().sum(), parameters)
    torch.autograd.grad(ours(inputs(2)).square().sum(), parameters)
    ours(inputs(3)).square().sum().backward()
    wanted = torch.autograd.grad(theirs.torchs(inputs(1)).square().sum(), [theirs.w, theirs.b])
    torch.testing.assert_close(first, wanted)


def test_a_second_pass_over_a_kept_graph_is_right() -> None:
    ours, theirs = twins()
    for model, call in ((ours, ours), (theirs, theirs.torchs)):
        loss = call(inputs()).square().sum()
        loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward()
    same_gradients(ours, theirs)


def test_a_pass_inside_a_pass_is_right() -> None:
    """Reentrant checkpoints run a backward inside of one, here between two that torch adds up."""
    ours, theirs = twins()
    for call in (ours, theirs.torchs):
        x = inputs().requires_grad_()
        first = call(x)
        inner = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=True)
        last = call(x)
        (first.square() + inner.pow(3) + last).sum().backward()
    same_gradients(ours, theirs)


def test_a_pass_to_some_inputs_alone_writes_to_the_buffer() -> None:
    ours, _ = twins()
    ours(inputs()).sum().backward(inputs=[ours.w])
    ours.load_state_dict({"w": torch.ones(16), "b": torch.ones(16)}, assign=True)
    ours(inputs()).sum().backward(inputs=[ours.w, ours.b])
    assert ours.w.grad.data_ptr() == ours.flat.gradients.data_ptr() + 4 * ours.flat.offset("w")
    assert torch.equal(ours.w.grad, inputs())
    ours.zero_grad()
    ours(inputs()).sum().backward(inputs=[ours.w])
    assert ours.b.grad is None


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_see_each_gradient(kind: str) -> None:
    ours, theirs = twins()
    seen: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for model, call in ((ours, ours), (theirs, theirs.torchs)):

        def look(value: torch.Tensor, model: Toy = model) -> None:
            value = value.grad if isinstance(value, nn.Parameter) else value
            seen[model is ours].append(value.clone())

        getattr(model.w, kind)(look)
        for seed in range(3):
            call(inputs(seed)).square().sum().backward()
    torch.testing.assert_close(seen[True], seen[False])
    same_gradients(ours, theirs)


def test_a_pass_that_failed_leaves_nothing_behind() -> None:
    ours, theirs = twins()
    x = inputs().requires_grad_()
    x.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours(x).sum().backward()
    ours.zero_grad()
    ours(inputs()).square().sum().backward()
    theirs.torchs(inputs()).square().sum().backward()
    same_gradients(ours, theirs)


def test_frozen_parameters_have_no_gradient() -> None:
    ours, _ = twins()
    ours.b.requires_grad_(False)
    ours(inputs()).sum().backward()
    assert ours.b.grad is None
    assert torch.equal(ours.w.grad, inputs())
