"""Asynchronous requests: jobs that wait, run and keep their result after the client has got 202.

``jobs`` decides, ``execution`` runs jobs and keeps results. ``delivery`` sends webhooks with results: ``callbacks``
checks their URLs and addresses, ``webhooks`` signs them, and ``deliveries`` decides which are sent.
"""
