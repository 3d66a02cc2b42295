"""How many replicas a service needs: pure functions of what its pods say and of time.

`signals` makes rates of what pods say, `want` a number of replicas of rates, `panic` and `down` say when it may not
fall; `decision` puts them together, `explanation` says it to people, and `rival` notices who else drives replicas.
Nothing here reads a metric or writes a scale.
"""
