#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A wrapper script, as many packaged programs have one.
exec "${0%/*}/execed" "$@"
