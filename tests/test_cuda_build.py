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


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_an_older_nvcc_is_refused_with_a_remedy(tmp_path: Path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    nvcc.chmod(0o755)
    script = Path(__file__).parents[1] / "cmake" / "cuda.cmake"
    asked = subprocess.run(
        ["cmake", f"-DPython_EXECUTABLE={sys.executable}", "-P", script],
        env=os.environ | {"FUSEWIRE_CUDA": "ON", "CUDACXX": str(nvcc)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode != 0
    said = " ".join(asked.stderr.split())
    assert f"{nvcc} of CUDA 12, wanted 13; name another by CUDACXX" in said
    assert "pip install -r cmake/cuda-compiler.txt" in said
