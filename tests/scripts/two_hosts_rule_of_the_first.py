"""The rule and the period are those of host 0's environment, on all hosts."""

from hosts_preamble import say, worker

from platoon_base.rules import default_period, default_rule

rule = default_rule()
say(repr(rule), default_period(rule))
worker.barrier()
