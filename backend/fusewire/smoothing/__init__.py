"""SmoothQuant: moves outliers of activations into the weights that read them, before a decoder is
quantised (Xiao et al., 2023, SmoothQuant: Accurate and Efficient Post-Training Quantization for
Large Language Models, section 4)."""

from fusewire.smoothing.channels import check_smooth
from fusewire.smoothing.folder import smoothed

__all__ = ["check_smooth", "smoothed"]
