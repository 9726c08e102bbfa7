"""Compilers from plans to kernel state, one package per proxy mode."""
