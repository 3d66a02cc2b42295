"""Pure functions that compute a service's replicas from its pods' loads.

`signals` computes rates from loads, `recommendation` replicas from rates; `panic` and `limits` limit changes;
`decision` combines them; `explanation` describes the result; `conflicts` detects other writers of replicas. Nothing
here reads metrics or writes a scale.
"""
