"""Asynchronous requests: jobs that wait, run and keep their result after the client has got 202.

``jobs`` decides, ``execution`` runs jobs and keeps results. A webhook with the result is sent by an object with the
method ``deliver(job_id: str, url: str, response: HttpResponse) -> None``.
"""
