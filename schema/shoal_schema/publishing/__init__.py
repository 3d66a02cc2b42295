"""What follows from the schema: the CustomResourceDefinition, the reference page, the tables of other pages. Pure."""
