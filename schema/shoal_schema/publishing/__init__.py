"""Generated documents: the CustomResourceDefinitions, the reference page, and the tables of other pages. Pure."""
