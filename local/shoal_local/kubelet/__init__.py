"""A kubelet that runs a pod's containers as processes of this machine.

It owns the processes, their files and the status of the pods. Scheduler and controllers decide which pods run.
"""
