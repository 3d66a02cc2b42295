"""Pure functions that plan writes, status, reconciliations and leadership.

``changes`` compares desired with observed objects; ``status`` derives conditions from observations; ``workqueue``
orders reconciliations; ``lease`` elects the leader.
"""
