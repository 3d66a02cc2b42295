"""Execution of admitted requests: dispatcher, runtime client, forwarding.

Also the memory limit of responses that clients have not read.
"""
