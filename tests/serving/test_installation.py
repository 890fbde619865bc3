"""Finding the server program, and refusing one that would not work."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving import installation
from fusewire.serving.endpoint import choose_ports, reserve


def test_numpy_2_is_refused_beside_a_stub_that_loses_its_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = tmp_path / "24.10", tmp_path / "24.12"
    old.write_bytes(b"\x7fELF...numpy.core.multiarray\x00")
    new.write_bytes(b"\x7fELF...numpy._core\x00multiarray\x00")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(ConfigurationError, match=r"numpy: got 2\.1\.0.*numpy<2"):
        installation.check_numpy(old)
    installation.check_numpy(new)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.26.4")
    installation.check_numpy(old)


def test_the_embedded_servers_stub_is_known_to_need_numpy_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = installation._wheel().stub
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(ConfigurationError, match="numpy: got"):
        installation.check_numpy(stub)


def test_a_missing_server_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "IMAGE", Path("/nowhere"))
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ConfigurationError, match=r"found none.*fusewire\[server\]"):
        installation.find()


def image(root: Path, python: str) -> Path:
    """A tritonserver installation laid out as in the official image."""
    server = root / "bin" / "tritonserver"
    backend = root / "backends" / "python"
    server.parent.mkdir()
    backend.mkdir(parents=True)
    server.write_bytes(b"")
    (backend / "libtriton_python.so").write_bytes(b"")
    stub = b"\x7fELF...libpython" + python.encode() + b".so.1.0..."
    (backend / "triton_python_backend_stub").write_bytes(stub)
    return server


def test_an_image_is_found_beside_its_program(tmp_path: Path) -> None:
    server = image(tmp_path, installation._PYTHON)
    found = installation.find(server)
    assert found.tritonserver == server
    assert found.stub == tmp_path / "backends" / "python" / "triton_python_backend_stub"


def test_a_stub_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is for Python 3\.5, wanted"):
        installation.find(image(tmp_path, "3.5"))


def test_an_incomplete_installation_names_what_is_missing(tmp_path: Path) -> None:
    server = image(tmp_path, installation._PYTHON)
    (tmp_path / "backends" / "python" / "libtriton_python.so").unlink()
    with pytest.raises(ConfigurationError, match=r"has no libtriton_python\.so"):
        installation.find(server)


def test_a_port_in_use_is_named() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"http-port: got 127.0.0.1:{port}, wanted a"):
            choose_ports("127.0.0.1", [("http-port", port)])


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.1"])
def test_a_host_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^host: got {host}, wanted .*this machine"):
        choose_ports(host, [("http-port", 0)])


def test_free_ports_are_chosen_and_differ() -> None:
    ports = choose_ports("127.0.0.1", [("a", 0), ("b", 0), ("c", 0)])
    assert len(set(ports)) == 3
    assert all(ports)


def test_a_reserved_port_is_nobody_elses_and_can_be_listened_at() -> None:
    import socket

    with reserve("127.0.0.1", [("a", 0)]) as reserved:
        (port,) = reserved.ports
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        # As tritonserver does: with SO_REUSEADDR.
        with socket.create_server(("127.0.0.1", port)), socket.socket() as client:
            client.connect(("127.0.0.1", port))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
