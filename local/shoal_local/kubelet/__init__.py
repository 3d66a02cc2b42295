"""A kubelet that runs a pod's containers as processes of this machine.

It owns processes, their files and their pod's status. It never decides where a pod goes nor how many there are.
"""
