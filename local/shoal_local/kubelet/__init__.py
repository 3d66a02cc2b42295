"""A kubelet that runs a pod's containers as processes of this machine.

It owns the processes, their files and their pod's status. It never decides on which node a pod runs, nor how many pods
there are.
"""
