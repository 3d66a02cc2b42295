"""What kinds exist: built in ones as a table, custom ones read from their definitions. Pure."""
