#!/usr/bin/env bash
# In a lab in which nothing is wrong nothing is said to be: `tartan doctor` finds nothing on any node, `tartan status`
# has no problem and the exit code 0.
# first: what follows may leave a count that a command shows

no_findings
