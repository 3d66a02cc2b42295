"""The verbs: functions from a request and the state to a response, which change the store. No I/O, no clock."""
