# SPDX-License-Identifier: Apache-2.0
"""The command line: a verb a module, named as it is typed. Nothing but these modules knows click.

A module imports what takes time (numpy, rich, the SSH library) when its verb is run: help and completion need none.
"""
