"""Codecs of the Open Inference Protocol (V2): bytes to arrays and back, without torch."""
