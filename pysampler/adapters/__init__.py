"""pysampler under the interfaces of training libraries, each imported only where it is used."""
