"""Interfaces of training libraries on pysampler; each library is imported only by its module."""
