"""The Kubernetes API on one machine, for kubectl, kopf and client-go; objects are kept in memory.

It owns objects, their versions and access to them. It never runs or schedules a pod: controllers and kubelet are
clients like any other. Sub-packages are pure: they map a request, the time and a source of uids to a response and
changes of the store.
"""
