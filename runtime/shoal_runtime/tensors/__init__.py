"""What computes with a model's tensors: PyTorch, or numpy alone, behind one interface.

It owns each library's ways to make, cast and read a tensor. It never knows a model, a caller or a device's streams.
"""
