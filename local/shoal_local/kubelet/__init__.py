"""A kubelet that runs a pod's containers as processes of this machine.

It owns the processes, their files and their pod's status. It does not schedule pods, and does not decide their number.
"""
