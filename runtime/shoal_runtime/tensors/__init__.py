"""Tensor operations on PyTorch tensors or numpy arrays, behind one interface.

Models, requests and CUDA streams are outside its scope.
"""
