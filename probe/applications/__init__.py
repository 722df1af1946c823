# SPDX-License-Identifier: Apache-2.0
"""Descriptions of applications: kernels, parameters, work, and how kernels are composed."""
