"""Declaration of settings: types, ranges, rules on several fields, and expressions."""
