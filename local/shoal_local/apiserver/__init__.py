"""The Kubernetes API on one machine: what kubectl, kopf and client-go ask for, in memory.

It owns objects, their versions and who may touch them. It never runs a pod and never decides where one goes: the
controllers and the kubelet are clients like any other. Sub-packages are pure: a request, the time and a source of uids
go in, a reply and the changes to the store come out.
"""
