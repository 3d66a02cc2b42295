"""Pure decisions: writes, status, the order of reconciliations, and leadership.

``changes`` compares desired with observed objects; ``status`` derives conditions from observations; ``workqueue``
orders reconciliations; ``lease`` elects the leader.
"""
