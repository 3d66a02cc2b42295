"""Rules of batching that other servers use, and what is measured of them and of Shoal's on one simulated device."""
