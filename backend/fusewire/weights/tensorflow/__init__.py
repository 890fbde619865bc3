"""Reads TensorFlow weights, which `fusewire import` converts, without tensorflow.

`keras_h5` and `bundle` read the two formats as variables, `names` maps these to Hugging Face's
tensors, and `worker` does this in a process with limits, which `conversion` starts.
"""
