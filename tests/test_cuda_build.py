"""A machine with CUDA's compiler builds the CUDA half, and one without a GPU says so plainly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.placement import Placement

NVCC = shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()
HAS_GPU = "cuda:0" in dict(kernels.devices())


@pytest.mark.skipif(
    not NVCC or os.environ.get("FUSEWIRE_CUDA") == "OFF", reason="no nvcc, or told not to use it"
)
def test_a_machine_with_a_compiler_builds_the_cuda_half():
    assert kernels.cuda_built()


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
