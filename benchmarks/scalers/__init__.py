"""Laws of scaling, and the simulated cluster that they are tried on."""
