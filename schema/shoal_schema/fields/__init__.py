"""Declaration of settings: types, ranges, and rules on several fields."""
