"""GPU kernels are built for a GPU of this machine; a build or a machine without one is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.placement import Placement

SCRIPT = Path(__file__).parents[1] / "cmake" / "cuda.cmake"
HAS_GPU = "cuda:0" in dict(kernels.devices())


@pytest.mark.skipif(not kernels.cuda_built(), reason="a build without CUDA")
def test_a_model_on_the_cpu_does_not_load_cublaslt():
    program = "import fusewire.kernels; print(open('/proc/self/maps').read())"
    mapped = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "_C." in mapped
    assert "cublas" not in mapped


@pytest.mark.skipif(not kernels.cuda_built() or HAS_GPU, reason="a build with CUDA and no GPU")
def test_without_a_gpu_the_error_says_what_to_check():
    with pytest.raises(ConfigurationError, match=r"got cuda:0, wanted one of 0 .* nvidia-smi"):
        Placement("cuda")


@pytest.mark.skipif(kernels.cuda_built(), reason="a build without CUDA")
def test_a_build_without_cuda_says_how_to_get_one():
    with pytest.raises(ConfigurationError, match=r"got cuda, wanted .* FUSEWIRE_CUDA=ON"):
        Placement("cuda")


@pytest.mark.parametrize(
    ("wanted", "gpu", "said"),
    [
        ("AUTO", False, "CPU only (nvidia-smi shows no GPU; FUSEWIRE_CUDA=ON builds for one else"),
        ("AUTO", True, "CPU only ({nvcc} of CUDA 12, wanted 13; name another by CUDACXX"),
        ("ON", False, "there is {nvcc} of CUDA 12, wanted 13; name another by CUDACXX"),
        ("OFF", True, "CPU only (FUSEWIRE_CUDA=OFF)"),
    ],
)
def test_kernels_for_gpus_are_built_for_a_gpu_that_is_here_or_where_asked_for(
    tmp_path: Path, wanted: str, gpu: bool, said: str
):
    nvcc = program(tmp_path / "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    program(tmp_path / "nvidia-smi", "GPU 0: NVIDIA H200" if gpu else "No devices were found")
    asked = subprocess.run(
        ["cmake", f"-DPython_EXECUTABLE={sys.executable}", "-P", SCRIPT],
        env={
            "FUSEWIRE_CUDA": wanted,
            "CUDACXX": str(nvcc),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode != 0) == (wanted == "ON")
    words = " ".join((asked.stdout + asked.stderr).split())
    assert said.format(nvcc=nvcc) in words
    assert ("pip install -r cmake/cuda-compiler.txt" in words) == ("CUDACXX" in said)


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path
