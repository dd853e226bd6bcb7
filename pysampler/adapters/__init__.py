"""pysampler under the vector env interfaces of training libraries, which are imported where used."""
