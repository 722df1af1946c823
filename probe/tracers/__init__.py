"""Tracers: from a program to a profile."""
