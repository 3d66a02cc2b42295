"""Tensor libraries: PyTorch, or numpy alone, behind one interface.

Owns how each library creates, casts and reads tensors. Independent of models, requests and CUDA streams.
"""
