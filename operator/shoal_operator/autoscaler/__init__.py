"""The number of replicas that a service needs: pure functions of its pods' loads and of time.

`signals` computes rates from loads, `want` a number of replicas from rates; `panic` and `down` limit changes;
`decision` combines them; `explanation` describes the result; `conflicts` detects other writers of replicas. Nothing
here reads metrics or writes a scale.
"""
